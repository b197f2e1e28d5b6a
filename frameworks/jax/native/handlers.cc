// handlers.cc - what XLA calls when a program on the CPU comes to an operation: typed FFI handlers, by name.
//
// Each returns at once with a future; no thread of XLA is held while a tensor travels. Input and output are the same
// memory where the program gives its operand away.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/collective.h"
#include "frameworks/common/operation.h"
#include "frameworks/jax/native/collective_size.h"
#include "frameworks/jax/native/data_type.h"
#include "frameworks/jax/native/handler.h"
#include "frameworks/jax/native/pending_call.h"
#include "frameworks/jax/native/tensor_name.h"
#include "xla/ffi/api/ffi.h"

namespace byteps::jax {
namespace {

namespace ffi = xla::ffi;
using binding::TensorSpec;
using binding::TheSession;

ffi::Future Failed(ffi::Error error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(std::move(error));
  return future;
}

// Calls `submit(spec, done)` with the operation's tensor.
template <typename F>
ffi::Future Submit(const ffi::AnyBuffer& tensor, std::string_view attribute, const ffi::RemainingArgs& operands,
                   F submit) {
  const ffi::ErrorOr<std::string> name = TensorName(attribute, operands);
  if (!name.has_value()) return Failed(name.error());
  const std::optional<uint32_t> dtype = DataType(tensor.element_type());
  if (!dtype) {
    return Failed(ffi::Error::InvalidArgument("tensor " + *name + " has a data type that BytePS does not send"));
  }
  const ffi::AnyBuffer::Dimensions shape = tensor.dimensions();
  PendingCall call;
  TensorSpec spec{name->c_str(), *dtype, shape.begin(), static_cast<int32_t>(shape.size())};
  spec.done_in_call = true;
  submit(spec, call.Done());
  return call.Return();
}

ffi::Future RunPushPull(ffi::AnyBuffer input, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> output,
                        std::string_view name, int64_t op, int64_t asynchronous, int64_t priority) {
  return Submit(input, name, operands, [&](TensorSpec tensor, binding::Done done) {
    tensor.asynchronous = asynchronous != 0;
    binding::PushPull(TheSession(), tensor, input.untyped_data(), output->untyped_data(), static_cast<int32_t>(op),
                      priority, std::move(done));
  });
}

ffi::Future RunBroadcast(ffi::AnyBuffer input, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> output,
                         std::string_view name, int64_t root, int64_t priority) {
  return Submit(input, name, operands, [&](const TensorSpec& tensor, binding::Done done) {
    binding::Broadcast(TheSession(), tensor, input.untyped_data(), output->untyped_data(), static_cast<int32_t>(root),
                       priority, std::move(done));
  });
}

ffi::Future RunCollective(ffi::AnyBuffer input, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> output,
                          std::string_view name, int64_t kind, int64_t op, int64_t root, ffi::Span<const int64_t> ranks,
                          int64_t priority) {
  return Submit(input, name, operands, [&](const TensorSpec& tensor, const binding::Done& done) {
    binding::CollectiveSpec spec{static_cast<int32_t>(kind), tensor, input.untyped_data()};
    spec.output = output->untyped_data();
    spec.output_bytes = output->size_bytes();
    spec.op = static_cast<int32_t>(op);
    spec.root = static_cast<int32_t>(root);
    spec.priority = priority;
    spec.ranks.assign(ranks.begin(), ranks.end());
    binding::Collective(TheSession(), spec,
                        [name = std::string(tensor.name), expected = spec.output_bytes, done](
                            const binding::Outcome& outcome, const binding::CollectiveResult& result) {
                          done(outcome.ok() ? CheckSize(name, result.bytes(), expected) : outcome);
                        });
  });
}

}  // namespace

BYTEPS_JAX_HANDLER(bps_shim_jax_push_pull);
BYTEPS_JAX_HANDLER(bps_shim_jax_broadcast);
BYTEPS_JAX_HANDLER(bps_shim_jax_collective);

XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_push_pull, RunPushPull,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("name")
                                  .Attr<int64_t>("op")
                                  .Attr<int64_t>("asynchronous")
                                  .Attr<int64_t>("priority"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_broadcast, RunBroadcast,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("name")
                                  .Attr<int64_t>("root")
                                  .Attr<int64_t>("priority"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(bps_shim_jax_collective, RunCollective,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("name")
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("op")
                                  .Attr<int64_t>("root")
                                  .Attr<ffi::Span<const int64_t>>("ranks")
                                  .Attr<int64_t>("priority"));

}  // namespace byteps::jax
