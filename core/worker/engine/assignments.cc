#include "core/worker/engine/assignments.h"

#include <optional>
#include <utility>

#include "core/base/status.h"

namespace byteps {

control::TensorSpec Assignments::SpecOf(const Tensor& tensor) {
  control::TensorSpec spec;
  spec.set_name(tensor.name().text());
  spec.set_dtype(tensor.dtype());
  for (int64_t extent : tensor.shape()) spec.add_shape(extent);
  spec.set_mode(tensor.mode());
  return spec;
}

void Assignments::Declare() {
  if (!pending()) return;
  std::vector<control::TensorSpec> specs = std::exchange(asking_, {});
  for (const Tensor* tensor : tensors_->TakeUndeclared()) specs.push_back(SpecOf(*tensor));
  sink_->OnDeclare(specs);
}

bool Assignments::Awaits(const Operation& operation) const {
  const auto found = awaiting_.find(operation.asked.tensor);
  return found != awaiting_.end() && found->second == &operation;
}

bool Assignments::CutFor(Tensor* tensor, uint64_t round) {
  if (!coordinated_) return true;
  if (!tensor->cut) return false;
  while (tensor->cut->next_cut() != 0 && round >= tensor->cut->next_cut()) {
    if (!tensor->next_cut) {
      if (tensor->refusal.ok()) AskForNextCut(tensor);
      return false;
    }
    tensor->cut = std::exchange(tensor->next_cut, std::nullopt);
    tensor->asked_next = false;
    sink_->OnAssigned(tensor);
  }
  if (tensor->cut->next_cut() != 0 && round >= tensor->cut->next_cut() / 2) AskForNextCut(tensor);
  return true;
}

void Assignments::AskForNextCut(Tensor* tensor) {
  if (std::exchange(tensor->asked_next, true)) return;
  control::TensorSpec& spec = asking_.emplace_back(SpecOf(*tensor));
  spec.set_from_round(tensor->cut->next_cut());
  spec.set_bytes_per_second(sink_->BytesPerSecond());
}

void Assignments::OnAssignment(Time now, const control::Assignment& assignment) {
  const control::TensorSpec& spec = assignment.tensor();
  const std::vector<int64_t> shape(spec.shape().begin(), spec.shape().end());
  Tensor* tensor = tensors_->Find(spec.name(), spec.dtype(), shape);
  if (tensor == nullptr) return;  // not asked for
  if (spec.from_round() != 0) return OnNextCut(now, tensor, assignment);
  if (tensor->cut) return;  // asked twice
  if (assignment.code() != BPS_OK) {
    tensor->refusal = Annotate(MakeStatus(assignment.code(), assignment.error()), tensor->Describe());
  } else if (absl::StatusOr<Cut> cut = Cut::Make(assignment, tensor->elements()); cut.ok()) {
    tensor->cut = *std::move(cut);
    sink_->OnAssigned(tensor);
  } else {
    tensor->refusal = Annotate(cut.status(), tensor->Describe());
  }
  auto waiting = awaiting_.find(tensor);
  if (waiting == awaiting_.end()) return;
  Operation* operation = waiting->second;
  awaiting_.erase(waiting);
  if (tensor->cut) {
    if (CutFor(tensor, operation->round)) return sink_->OnCutKnown(now, operation);
    awaiting_[tensor] = operation;
  } else {
    sink_->OnRefused(operation, tensor->refusal);
  }
}

void Assignments::OnNextCut(Time now, Tensor* tensor, const control::Assignment& assignment) {
  if (!tensor->cut || tensor->next_cut || tensor->cut->next_cut() != assignment.tensor().from_round()) return;
  absl::StatusOr<Cut> cut = Cut::Make(assignment, tensor->elements());
  if (assignment.code() != BPS_OK) cut = MakeStatus(assignment.code(), assignment.error());
  if (!cut.ok()) {
    // The other ranks may have it: from that round on this one cannot take part. Those before it go on.
    tensor->refusal = Annotate(cut.status(), tensor->Describe());
  } else {
    tensor->next_cut = *std::move(cut);
    // What was given up in rounds of the new cut is told now.
    if (!tensor->owed.empty()) CutFor(tensor, tensor->owed.back().round);
  }
  auto waiting = awaiting_.find(tensor);
  if (waiting == awaiting_.end()) return;
  Operation* operation = waiting->second;
  const bool known = CutFor(tensor, operation->round);
  if (!known && tensor->refusal.ok()) return;  // there is another one to come
  awaiting_.erase(waiting);
  if (known) {
    sink_->OnCutKnown(now, operation);
  } else {
    sink_->OnRefused(operation, tensor->refusal);
  }
}

}  // namespace byteps
