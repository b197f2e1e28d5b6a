// Answers next() wrongly, as the last task's priority says: 1: a task it was not given; 2: the same again; 3: whatever
// the budget; 4: before its time; 5: neither yes nor no. Or as LIAR_AS says, for all tasks.
#include <cstdlib>

#include "tests/plugins/minimal_scheduler.h"
static bool Fits(const bps_task& task, const bps_budget* budgets, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (budgets[i].peer == task.peer && budgets[i].tasks > 0 && budgets[i].bytes >= task.bytes) return true;
  }
  return false;
}
static int32_t Next(bps_scheduler* scheduler, int64_t, const bps_budget* budgets, size_t count, uint64_t* id) {
  const char* as = std::getenv("LIAR_AS");
  const int wrong = as == nullptr ? scheduler->task.priority : std::atoi(as);
  // Its first answer is right: what is wrong is the second.
  if (wrong == 2 && scheduler->queued) {
    if (!Fits(scheduler->task, budgets, count)) return 0;
    scheduler->queued = false;
  }
  *id = wrong == 1 ? scheduler->task.id + 1000 : scheduler->task.id;
  return wrong == 5 ? 2 : 1;
}
static void Withdraw(bps_scheduler*, uint64_t) {}
static constexpr bps_scheduler_table kTable = {
    sizeof(bps_scheduler_table), minimal::Create, minimal::Destroy, minimal::Enqueue, Next, minimal::Sent,
    minimal::Complete,           Withdraw};
MINIMAL_SCHEDULER(minimal::Info("liar"), &kTable);
