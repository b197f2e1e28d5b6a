// gpu_handlers.cc - what XLA calls when a program on a GPU comes to an operation: typed FFI handlers, by name.
//
// XLA hands over the stream on which it runs the program. A handler returns when the result is ordered in that stream:
// XLA may then give the operand's memory to another array, and starts what follows behind the result. It blocks one
// host thread of XLA, which has nothing else to do: a future would be waited for at the same place.
//
// Compiled programs of XLA go through the operations in an order that is fixed, so it must be the same on all ranks.

#include <cstdint>
#include <string>
#include <string_view>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/collective.h"
#include "frameworks/common/gpu_operation.h"
#include "frameworks/common/operation.h"
#include "frameworks/jax/native/collective_size.h"
#include "frameworks/jax/native/data_type.h"
#include "frameworks/jax/native/failures.h"
#include "frameworks/jax/native/gpu_memory.h"
#include "frameworks/jax/native/handler.h"
#include "frameworks/jax/native/tensor_name.h"
#include "xla/ffi/api/ffi.h"

namespace byteps::jax {
namespace {

namespace ffi = xla::ffi;
using binding::GpuPlace;
using binding::TensorSpec;
using binding::TheSession;
using Stream = ffi::PlatformStream<void*>;

// Calls `run(spec, place)` with the operation's tensor and its GPU, or that of the result where the tensor is empty.
template <typename F>
ffi::Error Run(void* stream, const ffi::AnyBuffer& tensor, const ffi::AnyBuffer& result, std::string_view attribute,
               const ffi::RemainingArgs& operands, F run) {
  const ffi::ErrorOr<std::string> name = TensorName(attribute, operands, [&](const void* from, size_t bytes, void* to) {
    return ReadGpuMemory(stream, from, bytes, to);
  });
  if (!name.has_value()) return name.error();
  const std::optional<uint32_t> dtype = DataType(tensor.element_type());
  if (!dtype) {
    return ffi::Error::InvalidArgument("tensor " + *name + " has a data type that BytePS does not send");
  }
  const ffi::AnyBuffer::Dimensions shape = tensor.dimensions();
  GpuPlace place{0, stream};
  const ffi::AnyBuffer& somewhere = tensor.element_count() > 0 ? tensor : result;
  if (somewhere.element_count() > 0) {
    const ffi::ErrorOr<int32_t> gpu = GpuOf(stream, somewhere.untyped_data());
    if (!gpu.has_value()) return gpu.error();
    place.gpu = *gpu;
  }
  const binding::Outcome outcome =
      run(TensorSpec{name->c_str(), *dtype, shape.begin(), static_cast<int32_t>(shape.size())}, place);
  if (outcome.ok()) return {};
  TheFailures().Add(outcome);
  return {static_cast<ffi::ErrorCode>(outcome.code), outcome.message};
}

ffi::Error RunPushPull(void* stream, ffi::AnyBuffer input, ffi::RemainingArgs operands,
                       ffi::Result<ffi::AnyBuffer> output, std::string_view name, int64_t op, int64_t asynchronous,
                       int64_t priority) {
  return Run(stream, input, *output, name, operands, [&](TensorSpec tensor, const GpuPlace& place) {
    tensor.asynchronous = asynchronous != 0;
    return binding::PushPullOnGpu(TheSession(), tensor, place, input.untyped_data(), output->untyped_data(),
                                  static_cast<int32_t>(op), priority);
  });
}

ffi::Error RunBroadcast(void* stream, ffi::AnyBuffer input, ffi::RemainingArgs operands,
                        ffi::Result<ffi::AnyBuffer> output, std::string_view name, int64_t root, int64_t priority) {
  return Run(stream, input, *output, name, operands, [&](const TensorSpec& tensor, const GpuPlace& place) {
    return binding::BroadcastOnGpu(TheSession(), tensor, place, input.untyped_data(), output->untyped_data(),
                                   static_cast<int32_t>(root), priority);
  });
}

ffi::Error RunCollective(void* stream, ffi::AnyBuffer input, ffi::RemainingArgs operands,
                         ffi::Result<ffi::AnyBuffer> output, std::string_view name, int64_t kind, int64_t op,
                         int64_t root, ffi::Span<const int64_t> ranks, int64_t priority) {
  return Run(stream, input, *output, name, operands, [&](const TensorSpec& tensor, const GpuPlace& place) {
    binding::CollectiveSpec spec{static_cast<int32_t>(kind), tensor, input.untyped_data()};
    spec.output = output->untyped_data();
    spec.output_bytes = output->size_bytes();
    spec.op = static_cast<int32_t>(op);
    spec.root = static_cast<int32_t>(root);
    spec.priority = priority;
    spec.ranks.assign(ranks.begin(), ranks.end());
    uint64_t bytes = 0;
    const binding::Outcome outcome = binding::CollectiveOnGpu(TheSession(), spec, place, &bytes);
    return outcome.ok() ? CheckSize(tensor.name, bytes, spec.output_bytes) : outcome;
  });
}

// What is registered where these handlers do not take the memory.
ffi::Error Refuse(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
  return {ffi::ErrorCode::kUnimplemented,
          "byteps.jax takes arrays in host memory and on NVIDIA's GPUs, and this one is on another device. Put what is "
          "sent on the CPU: jax.device_put, or JAX_PLATFORMS=cpu for all of it."};
}

}  // namespace

BYTEPS_JAX_HANDLER(bps_shim_jax_push_pull_on_gpu);
BYTEPS_JAX_HANDLER(bps_shim_jax_broadcast_on_gpu);
BYTEPS_JAX_HANDLER(bps_shim_jax_collective_on_gpu);
BYTEPS_JAX_HANDLER(bps_shim_jax_refuse_device);

XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_push_pull_on_gpu, RunPushPull,
                              ffi::Ffi::Bind()
                                  .Ctx<Stream>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("name")
                                  .Attr<int64_t>("op")
                                  .Attr<int64_t>("asynchronous")
                                  .Attr<int64_t>("priority"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_broadcast_on_gpu, RunBroadcast,
                              ffi::Ffi::Bind()
                                  .Ctx<Stream>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("name")
                                  .Attr<int64_t>("root")
                                  .Attr<int64_t>("priority"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_collective_on_gpu, RunCollective,
                              ffi::Ffi::Bind()
                                  .Ctx<Stream>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("name")
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("op")
                                  .Attr<int64_t>("root")
                                  .Attr<ffi::Span<const int64_t>>("ranks")
                                  .Attr<int64_t>("priority"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_refuse_device, Refuse,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

}  // namespace byteps::jax
