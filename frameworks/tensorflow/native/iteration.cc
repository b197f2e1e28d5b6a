#include "frameworks/tensorflow/native/iteration.h"

#include "abi/byteps.h"

namespace byteps::tensorflow {
namespace {

// The frame of what is in no loop. Where TensorFlow knows of no frames the iteration is negative.
constexpr uint64_t kNoLoop = 0;

}  // namespace

Iteration Iteration::Of(const CApi& api, TF_OpKernelContext* context) {
  if (api.TF_GetFrameId(context) == kNoLoop) return {};
  const int64_t number = api.TF_GetIterId(context);
  if (number < 0) return {};
  return {static_cast<uint64_t>(number) + 1, api.TF_GetStepId(context)};
}

binding::Outcome Iterations::Admit(const Iteration& iteration) const {
  if (iteration.number == 0 || failed_step_.load(std::memory_order_relaxed) != iteration.step) return {};
  return {BPS_CANCELLED, "not sent: another iteration of the loop has failed"};
}

void Iterations::End(const Iteration& iteration, const binding::Outcome& outcome) {
  if (iteration.number == 0 || outcome.ok()) return;
  failed_step_.store(iteration.step, std::memory_order_relaxed);
}

}  // namespace byteps::tensorflow
