// relay_stage.h - a stage that hands everything on, both ways: what a stage in the middle of a chain begins with.
//
//     class HalfStage : public RelayStage {
//       void Begin(...) override { ...; next()->Begin(now, operation, own_areas, range); }
//       void Push(...) override { Encode(source, own); next()->Push(now, operation, part, own, own); }
//       void OnPartHome(...) override { Decode(result, target); sink_->OnPartHome(operation, part, target); }
//     };
//
// An operation that a derived stage has not seen begin passes by it unchanged. So it may be put in front of a chain
// that has operations in flight.
//
// Threads: none; called by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_TENSOR_RELAY_STAGE_H_
#define BYTEPS_CORE_WORKER_TENSOR_RELAY_STAGE_H_

#include "core/base/time.h"
#include "core/worker/tensor/stage.h"

namespace byteps {

class RelayStage : public Stage, public StageSink {
 public:
  void UseNext(Stage* next) override {
    next_ = next;
    next->UseSink(static_cast<StageSink*>(this));
  }

  // Stage: to the next one. (The engine runs, stops and asks every stage of the chain by itself.)
  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override {
    next_->Begin(now, operation, areas, range);
  }
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override {
    next_->Push(now, operation, part, source, target);
  }
  uint32_t PartAt(const Operation& operation, uint32_t turn) const override { return next_->PartAt(operation, turn); }
  void Abort(Time now, Operation* operation, const absl::Status& why) override { next_->Abort(now, operation, why); }
  void Withdraw(Time now, Operation* operation, const absl::Status& why) override {
    next_->Withdraw(now, operation, why);
  }
  void Drop(Operation* operation) override { next_->Drop(operation); }
  void Stop() override {}
  bool Run(Time) override { return false; }
  Time NextTimer() const override { return kNever; }
  std::string WhoIsMissing(const Operation& operation) const override { return next_->WhoIsMissing(operation); }

  // StageSink: to the one before.
  void OnPartHome(Operation* operation, uint32_t part, const Payload& result) override {
    sink_->OnPartHome(operation, part, result);
  }
  void OnGivingUp(Operation* operation, const absl::Status& why, bool told) override {
    sink_->OnGivingUp(operation, why, told);
  }
  void OnEnqueued(Operation* operation) override { sink_->OnEnqueued(operation); }
  void OnStageDone(Operation* operation, const absl::Status& outcome) override {
    sink_->OnStageDone(operation, outcome);
  }
  void OnStageFatal(const absl::Status& why, uint32_t member) override { sink_->OnStageFatal(why, member); }

 protected:
  Stage* next() const { return next_; }

 private:
  Stage* next_ = nullptr;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_RELAY_STAGE_H_
