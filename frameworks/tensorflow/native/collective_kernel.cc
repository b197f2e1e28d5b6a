#include "frameworks/tensorflow/native/collective_kernel.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/tensorflow/native/attributes.h"
#include "frameworks/tensorflow/native/data_type.h"
#include "frameworks/tensorflow/native/done_function.h"
#include "frameworks/tensorflow/native/error_text.h"
#include "frameworks/tensorflow/native/iteration.h"

namespace byteps::tensorflow {
namespace {

using binding::CollectiveDone;
using binding::CollectiveResult;
using binding::CollectiveSpec;
using binding::Outcome;

using Input = CollectiveKernel::Input;

Input Read(const CApi& api, TF_OpKernelContext* context, int index, TF_Status* status) {
  TF_Tensor* tensor = nullptr;
  api.TF_GetInput(context, index, &tensor, status);
  if (api.TF_GetCode(status) != 0) return {};
  Input input;
  input.data = api.TF_TensorData(tensor);
  for (int dim = 0; dim < api.TF_NumDims(tensor); ++dim) input.shape.push_back(api.TF_Dim(tensor, dim));
  api.TF_DeleteTensor(tensor);
  return input;
}

// Memory of a result, held as long as the tensor that it has become.
void Drop(void*, size_t, void* result) { delete static_cast<CollectiveResult*>(result); }

}  // namespace

CollectiveKernel::CollectiveKernel(const CApi& api, TF_OpKernelConstruction* construction) : api_(api) {
  const Attributes attributes(api, construction);
  kind_ = attributes.Number("kind");
  op_ = attributes.Number("op");
  root_ = attributes.Number("root_rank");
  priority_ = attributes.Number("priority");
  name_ = attributes.String("tensor_name");
  type_ = attributes.Type("T");
  dtype_ = DtypeOf(type_);
  for (const int64_t rank : attributes.Numbers("ranks")) ranks_.push_back(static_cast<int32_t>(rank));
  const auto give_up = [name = name_, kind = kind_, dtype = dtype_, op = op_, root = root_, ranks = ranks_](
                           const std::vector<int64_t>& shape, uint64_t iteration, const std::string& reason,
                           binding::Done ended) {
    const binding::TensorSpec tensor{name.c_str(), dtype, shape.data(), static_cast<int32_t>(shape.size())};
    CollectiveSpec spec{static_cast<int32_t>(kind), tensor, nullptr};
    spec.tensor.match = iteration;
    spec.op = static_cast<int32_t>(op);
    spec.root = static_cast<int32_t>(root);
    spec.ranks = ranks;
    binding::GiveUp(binding::TheSession(), spec, reason.c_str(), std::move(ended));
  };
  // Nobody compares the shape of a round that is given up.
  member_.Join(attributes, name_, give_up, std::vector<int64_t>{0});
}

void CollectiveKernel::SetOutputs(TF_OpKernelContext* context, const CollectiveResult& result,
                                  std::vector<int64_t> shape, TF_Status* status) const {
  TF_Tensor* output = nullptr;
  if (result.bytes() > 0) {
    shape = result.shape();
    output = api_.TF_NewTensor(type_, shape.data(), static_cast<int>(shape.size()), const_cast<void*>(result.data()),
                               result.bytes(), Drop, new CollectiveResult(result));
    api_.TF_SetOutput(context, 0, output, status);
  } else {
    // No rows, or rows of no elements: then the result says how many.
    if (result.shape().size() == shape.size()) {
      shape = result.shape();
    } else if (!shape.empty()) {
      shape[0] = 0;
    }
    output = api_.TF_AllocateOutput(context, 0, type_, shape.data(), static_cast<int>(shape.size()), 0, status);
  }
  api_.TF_DeleteTensor(output);
  if (api_.TF_GetCode(status) != 0) return;
  const std::vector<int64_t> rows = result.splits();
  const auto size = static_cast<int64_t>(rows.size());
  TF_Tensor* counts = api_.TF_AllocateOutput(context, 1, kInt64, &size, 1, rows.size() * sizeof(int64_t), status);
  if (api_.TF_GetCode(status) == 0 && !rows.empty()) {
    std::memcpy(api_.TF_TensorData(counts), rows.data(), rows.size() * sizeof(int64_t));
  }
  api_.TF_DeleteTensor(counts);
}

void CollectiveKernel::Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const ScopedStatus status(api_);
  const Iteration iteration = Iteration::Of(api_, context);
  const StepMember::Place place = member_.Of(api_, context, iteration);
  const Input tensor = Read(api_, context, 0, status.get());
  const Input splits = status.ok() ? Read(api_, context, 1, status.get()) : Input{};
  if (const Outcome refused = iterations_.Admit(iteration); status.ok() && !refused.ok()) {
    api_.TF_SetStatus(status.get(), refused.code, refused.message.c_str());
  }
  if (!status.ok()) {
    member_.Fail(place, {api_.TF_GetCode(status.get()), api_.TF_Message(status.get())});
    api_.TF_OpKernelContext_Failure(context, status.get());
    FunctionOf(done)();
    return;
  }
  // The last call takes context and kernel along, so nothing of them is touched behind it.
  CollectiveDone finish = [this, context, iteration, place, shape = tensor.shape, function = FunctionOf(done)](
                              const Outcome& outcome, const CollectiveResult& result) {
    const ScopedStatus ended(api_);
    if (outcome.ok()) {
      SetOutputs(context, result, shape, ended.get());
    } else {
      iterations_.End(iteration, outcome);
      api_.TF_SetStatus(ended.get(), outcome.code, ErrorText(outcome, iteration.number).c_str());
    }
    if (!ended.ok()) {
      member_.Fail(place, {api_.TF_GetCode(ended.get()), api_.TF_Message(ended.get())});
      api_.TF_OpKernelContext_Failure(context, ended.get());
    }
    function();
  };
  std::vector<int64_t> rows;
  if (splits.shape.size() == 1) {
    const auto* first = static_cast<const int64_t*>(splits.data);
    rows.assign(first, first + splits.shape[0]);
  }
  member_.Begin(place, tensor.shape,
                [this, tensor, iteration, rows = std::move(rows), finish = std::move(finish)](const Outcome& refused) {
                  if (!refused.ok()) return finish(refused, {});
                  Send(tensor, iteration, rows, finish);
                });
}

void CollectiveKernel::Send(const Input& tensor, const Iteration& iteration, const std::vector<int64_t>& splits,
                            const CollectiveDone& finish) const {
  CollectiveSpec spec{static_cast<int32_t>(kind_),
                      {name_.c_str(), dtype_, tensor.shape.data(), static_cast<int32_t>(tensor.shape.size())},
                      tensor.data};
  spec.tensor.match = iteration.number;
  spec.op = static_cast<int32_t>(op_);
  spec.root = static_cast<int32_t>(root_);
  spec.priority = priority_;
  spec.splits = splits;
  spec.ranks = ranks_;
  binding::Collective(binding::TheSession(), spec, finish);
}

}  // namespace byteps::tensorflow
