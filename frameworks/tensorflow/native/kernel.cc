#include "frameworks/tensorflow/native/kernel.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/operation.h"
#include "frameworks/tensorflow/native/attributes.h"
#include "frameworks/tensorflow/native/data_type.h"
#include "frameworks/tensorflow/native/done_function.h"
#include "frameworks/tensorflow/native/error_text.h"
#include "frameworks/tensorflow/native/iteration.h"

namespace byteps::tensorflow {
namespace {

using binding::Done;
using binding::Outcome;

}  // namespace

Kernel::Kernel(const CApi& api, Kind kind, TF_OpKernelConstruction* construction) : api_(api), kind_(kind) {
  const Attributes attributes(api, construction);
  name_ = attributes.String("tensor_name");
  dtype_ = DtypeOf(attributes.Type("T"));
  priority_ = attributes.Number("priority");
  if (kind == Kind::kBroadcast) {
    root_ = attributes.Number("root_rank");
    return;
  }
  op_ = attributes.Number("op");
  asynchronous_ = attributes.Flag("asynchronous");
  const auto give_up = [name = name_, dtype = dtype_, op = static_cast<int32_t>(op_)](
                           const std::vector<int64_t>& shape, uint64_t iteration, const std::string& reason,
                           Done ended) {
    binding::TensorSpec tensor{name.c_str(), dtype, shape.data(), static_cast<int32_t>(shape.size())};
    tensor.match = iteration;
    binding::GiveUpPushPull(binding::TheSession(), tensor, op, reason.c_str(), std::move(ended));
  };
  member_.Join(attributes, name_, give_up, std::nullopt);
}

bool Kernel::Allocate(TF_OpKernelContext* context, Memory& memory) const {
  const ScopedStatus status(api_);
  TF_Tensor* input = nullptr;
  api_.TF_GetInput(context, 0, &input, status.get());
  if (!status.ok()) {
    api_.TF_OpKernelContext_Failure(context, status.get());
    return false;
  }
  memory.input = api_.TF_TensorData(input);
  const int ndim = api_.TF_NumDims(input);
  for (int dim = 0; dim < ndim; ++dim) memory.shape.push_back(api_.TF_Dim(input, dim));
  // Before the output is asked for: memory with another owner is not handed on. The context holds the input as well.
  api_.TF_DeleteTensor(input);

  const int candidate = 0;
  int forwarded = -1;
  TF_Tensor* output = api_.TF_ForwardInputOrAllocateOutput(context, &candidate, 1, 0, memory.shape.data(), ndim,
                                                           &forwarded, status.get());
  if (!status.ok()) {
    api_.TF_OpKernelContext_Failure(context, status.get());
    return false;
  }
  memory.output = api_.TF_TensorData(output);
  api_.TF_DeleteTensor(output);
  return true;
}

void Kernel::Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const Iteration iteration = Iteration::Of(api_, context);
  const StepMember::Place place = member_.Of(api_, context, iteration);
  Memory memory;
  if (!Allocate(context, memory)) {
    member_.Fail(place, {BPS_RESOURCE_EXHAUSTED, "TensorFlow has no memory for it"});
    FunctionOf(done)();
    return;
  }
  // The last call takes context and kernel along, so nothing of them is touched behind it.
  Done finish = [this, context, iteration, place, function = FunctionOf(done)](const Outcome& outcome) {
    if (!outcome.ok()) {
      iterations_.End(iteration, outcome);
      member_.Fail(place, outcome);
      const ScopedStatus status(api_);
      api_.TF_SetStatus(status.get(), outcome.code, ErrorText(outcome, iteration.number).c_str());
      api_.TF_OpKernelContext_Failure(context, status.get());
    }
    function();
  };
  if (const Outcome refused = iterations_.Admit(iteration); !refused.ok()) return finish(refused);
  member_.Begin(place, memory.shape, [this, memory, iteration, finish = std::move(finish)](const Outcome& refused) {
    if (!refused.ok()) return finish(refused);
    Send(memory, iteration, finish);
  });
}

void Kernel::Send(const Memory& memory, const Iteration& iteration, const Done& finish) const {
  binding::TensorSpec tensor{name_.c_str(), dtype_, memory.shape.data(), static_cast<int32_t>(memory.shape.size()),
                             asynchronous_};
  // Asynchronous rounds meet none of other ranks.
  if (!tensor.asynchronous) tensor.match = iteration.number;
  if (kind_ == Kind::kPushPull) {
    binding::PushPull(binding::TheSession(), tensor, memory.input, memory.output, static_cast<int32_t>(op_), priority_,
                      finish);
  } else {
    binding::Broadcast(binding::TheSession(), tensor, memory.input, memory.output, static_cast<int32_t>(root_),
                       priority_, finish);
  }
}

}  // namespace byteps::tensorflow
