// Answers next() wrongly, as the last task's priority says: 1: a task it was not given; 2: the same again; 3: whatever
// the budget; 4: before its time; 5: neither yes nor no. Or as LIAR_AS says, for all tasks.
#include <cstdlib>

#include "tests/plugins/minimal_scheduler.h"
static int32_t Next(bps_scheduler* scheduler, int64_t, const bps_budget*, size_t, uint64_t* id) {
  const char* as = std::getenv("LIAR_AS");
  const int wrong = as == nullptr ? scheduler->task.priority : std::atoi(as);
  *id = wrong == 1 ? scheduler->task.id + 1000 : scheduler->task.id;
  return wrong == 5 ? 2 : 1;
}
static void Withdraw(bps_scheduler*, uint64_t) {}
static constexpr bps_scheduler_table kTable = {
    sizeof(bps_scheduler_table), minimal::Create, minimal::Destroy, minimal::Enqueue, Next, minimal::Sent,
    minimal::Complete,           Withdraw};
MINIMAL_SCHEDULER(minimal::Info("liar"), &kTable);
