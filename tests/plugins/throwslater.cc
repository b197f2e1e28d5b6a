// Throws from `create` for results, and from `next` for pushes.
#include <stdexcept>

#include "tests/plugins/minimal_scheduler.h"
static int32_t Create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure* failure) {
  if (args->direction == BPS_DIRECTION_RESULT) throw std::runtime_error("create went wrong");
  return minimal::Create(args, scheduler, failure);
}
static int32_t Next(bps_scheduler*, int64_t, const bps_budget*, size_t, uint64_t*) {
  throw std::runtime_error("next went wrong");
}
static constexpr bps_scheduler_table kTable = {
    sizeof(bps_scheduler_table), Create,           minimal::Destroy, minimal::Enqueue, Next, minimal::Sent,
    minimal::Complete,           minimal::Withdraw};
MINIMAL_SCHEDULER(minimal::Info("throwslater"), &kTable);
