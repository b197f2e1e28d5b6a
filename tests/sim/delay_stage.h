// delay_stage.h - a stage that keeps everything that passes through it for a while: parts change places on their way.
//
//     options.stages.push_back({"servers", [](uint64_t seed) { return std::make_unique<DelayStage>(seed); }});
#ifndef BYTEPS_TESTS_SIM_DELAY_STAGE_H_
#define BYTEPS_TESTS_SIM_DELAY_STAGE_H_

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/worker/tensor/relay_stage.h"
#include "transport_plugins/sim/random.h"

namespace byteps {

class DelayStage : public RelayStage {
 public:
  explicit DelayStage(uint64_t seed) : random_(seed) {}

  const char* name() const override { return "delay"; }

  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override {
    now_ = now;
    outcomes_[operation->id] = {operation, range.size(), std::nullopt};
    next()->Begin(now, operation, areas, range);
  }
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override {
    now_ = now;
    pushes_.emplace(Later(), Kept{operation, part, source, target});
  }
  void Abort(Time now, Operation* operation, const absl::Status& why) override {
    now_ = now;
    if (Over(*operation)) return;  // it ends in a moment, and well
    Forget(&pushes_, operation);
    next()->Abort(now, operation, why);
  }
  void Withdraw(Time now, Operation* operation, const absl::Status& why) override {
    now_ = now;
    if (Over(*operation)) return;
    Forget(&pushes_, operation);
    next()->Withdraw(now, operation, why);
  }
  void Drop(Operation* operation) override {
    Forget(&pushes_, operation);
    Forget(&results_, operation);
    const bool over = Over(*operation);
    outcomes_.erase(operation->id);
    if (!over) next()->Drop(operation);
  }

  void OnPartHome(Operation* operation, uint32_t part, const Payload& result) override {
    results_.emplace(Later(), Kept{operation, part, result, result});
  }
  void OnGivingUp(Operation* operation, const absl::Status& why, bool told) override {
    Forget(&pushes_, operation);
    Forget(&results_, operation);
    sink_->OnGivingUp(operation, why, told);
  }
  void OnStageDone(Operation* operation, const absl::Status& outcome) override {
    const auto kept = outcomes_.find(operation->id);
    if (kept != outcomes_.end() && outcome.ok() && kept->second.left != 0) {
      kept->second.outcome = outcome;
      return;
    }
    outcomes_.erase(operation->id);
    sink_->OnStageDone(operation, outcome);
  }

  bool Run(Time now) override {
    now_ = now;
    bool worked = false;
    while (!pushes_.empty() && pushes_.begin()->first <= now) {
      const Kept kept = Take(&pushes_);
      next()->Push(now, kept.operation, kept.part, kept.source, kept.target);
      worked = true;
    }
    while (!results_.empty() && results_.begin()->first <= now) {
      const Kept kept = Take(&results_);
      sink_->OnPartHome(kept.operation, kept.part, kept.target);
      worked = true;
      const auto outcome = outcomes_.find(kept.operation->id);
      if (--outcome->second.left != 0 || !outcome->second.outcome) continue;
      outcomes_.erase(outcome);
      sink_->OnStageDone(kept.operation, absl::OkStatus());
    }
    return worked;
  }
  Time NextTimer() const override {
    Time next = kNever;
    if (!pushes_.empty()) next = std::min(next, pushes_.begin()->first);
    if (!results_.empty()) next = std::min(next, results_.begin()->first);
    return next;
  }

 private:
  struct Kept {
    Operation* operation;
    uint32_t part;
    Payload source;
    Payload target;
  };
  struct Outcome {
    Operation* operation;
    uint32_t left;  // results that have not been handed on
    std::optional<absl::Status> outcome;
  };
  using Queue = std::multimap<Time, Kept>;

  Time Later() { return now_ + random_.Between(0, 2000) * 1000; }
  // Has the next stage done with it?
  bool Over(const Operation& operation) const {
    const auto kept = outcomes_.find(operation.id);
    return kept != outcomes_.end() && kept->second.outcome.has_value();
  }
  static Kept Take(Queue* queue) {
    const Kept kept = queue->begin()->second;
    queue->erase(queue->begin());
    return kept;
  }
  static void Forget(Queue* queue, const Operation* operation) {
    std::erase_if(*queue, [&](const auto& each) { return each.second.operation == operation; });
  }

  sim::Random random_;
  Time now_ = 0;
  Queue pushes_;
  Queue results_;
  std::map<uint64_t, Outcome> outcomes_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_DELAY_STAGE_H_
