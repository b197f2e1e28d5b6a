// assignments.h - what the coordinator says of tensors: asked for, checked, and awaited by operations.
//
//     Assignments assignments(&tensors, &sink);
//     assignments.UseCoordinator();                            // else tensors need no cut
//     if (!assignments.CutFor(tensor, round)) assignments.Await(operation);
//     assignments.Declare();                                   // from time to time: sink->OnDeclare(...)
//     assignments.OnAssignment(now, assignment);               // sink->OnCutKnown(now, operation), or OnRefused
//
// All ranks change their cuts at the same rounds, which the coordinator names; the next one is asked for well before it
// is needed.
//
// Threads: none; driven by the thread that drives the engine.
// Ownership: tensors and sink outlive it; the operations are the engine's.
#ifndef BYTEPS_CORE_WORKER_ENGINE_ASSIGNMENTS_H_
#define BYTEPS_CORE_WORKER_ENGINE_ASSIGNMENTS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {

class AssignmentsSink {
 public:
  virtual ~AssignmentsSink() = default;
  // To the coordinator.
  virtual void OnDeclare(const std::vector<control::TensorSpec>& tensors) = 0;
  // A cut of the tensor has come: the others may be told of what was given up before.
  virtual void OnAssigned(Tensor* tensor) = 0;
  // What an operation has awaited: its cut is there, or there is none.
  virtual void OnCutKnown(Time now, Operation* operation) = 0;
  virtual void OnRefused(Operation* operation, const absl::Status& why) = 0;
  // What results have come at, to cut tensors by; 0: not known.
  virtual uint64_t BytesPerSecond() const = 0;
};

class Assignments {
 public:
  Assignments(TensorTable* tensors, AssignmentsSink* sink) : tensors_(tensors), sink_(sink) {}

  // Tensors are declared to a coordinator.
  void UseCoordinator() { coordinated_ = true; }
  bool coordinated() const { return coordinated_; }

  // Is the cut of this round there, or none needed?
  bool CutFor(Tensor* tensor, uint64_t round);
  // The operation waits for its cut.
  void Await(Operation* operation) { awaiting_[operation->asked.tensor] = operation; }
  bool Awaits(const Operation& operation) const;
  void Forget(const Operation& operation) { awaiting_.erase(operation.asked.tensor); }
  void Clear() { awaiting_.clear(); }

  // Is there anything to declare?
  bool pending() const { return coordinated_ && (tensors_->HasUndeclared() || !asking_.empty()); }
  void Declare();
  void OnAssignment(Time now, const control::Assignment& assignment);

 private:
  static control::TensorSpec SpecOf(const Tensor& tensor);
  void AskForNextCut(Tensor* tensor);
  void OnNextCut(Time now, Tensor* tensor, const control::Assignment& assignment);

  TensorTable* const tensors_;
  AssignmentsSink* const sink_;
  bool coordinated_ = false;
  absl::flat_hash_map<Tensor*, Operation*> awaiting_;
  std::vector<control::TensorSpec> asking_;  // for later cuts: with the next Declare
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_ENGINE_ASSIGNMENTS_H_
