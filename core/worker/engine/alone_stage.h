// alone_stage.h - the only step of a worker alone: the reduction over one worker is its input.
//
// Small parts are copied at once; large ones wait in the queue for Run, one for each call, so that nothing takes long.
#ifndef BYTEPS_CORE_WORKER_ENGINE_ALONE_STAGE_H_
#define BYTEPS_CORE_WORKER_ENGINE_ALONE_STAGE_H_

#include <deque>

#include "absl/container/flat_hash_map.h"
#include "core/worker/tensor/stage.h"

namespace byteps {

class AloneStage : public Stage {
 public:
  const char* name() const override { return "alone"; }
  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override;
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override;
  void Abort(Time now, Operation* operation, const absl::Status& why) override;
  void Drop(Operation* operation) override;
  void Stop() override {}
  bool Run(Time now) override;
  Time NextTimer() const override;

 private:
  struct Copy {
    Operation* operation;
    uint32_t part;
    Payload source;
    Payload target;
  };

  std::deque<Copy> queue_;
  absl::flat_hash_map<Operation*, uint32_t> parts_;  // those that are not home
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_ENGINE_ALONE_STAGE_H_
