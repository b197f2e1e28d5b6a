// alone_stage.h - the only step of a worker alone: the reduction over one worker is its input.
//
// Small tensors are copied at once; large ones wait in the queue for Run, so that submitting never takes long.
#ifndef BYTEPS_CORE_WORKER_ENGINE_ALONE_STAGE_H_
#define BYTEPS_CORE_WORKER_ENGINE_ALONE_STAGE_H_

#include <deque>

#include "core/worker/tensor/stage.h"

namespace byteps {

class AloneStage : public Stage {
 public:
  explicit AloneStage(StageSink* sink) : sink_(sink) {}

  const char* name() const override { return "alone"; }
  void Start(Time now, Operation* operation) override;
  void Abort(Time now, Operation* operation, const absl::Status& why) override;
  void Drop(Operation* operation) override;
  void Stop() override {}
  bool Run(Time now) override;
  Time NextTimer() const override;

 private:
  void Copy(Operation* operation);

  StageSink* const sink_;
  std::deque<Operation*> queue_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_ENGINE_ALONE_STAGE_H_
