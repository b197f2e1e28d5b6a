#include "scheduler_plugins/priority/scheduler.h"

namespace byteps::priority {

bool Scheduler::Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  Task* best = queue_.Best(now, budgets, count, [](const Task&) { return true; });
  if (best == nullptr) return false;
  queue_.Take(best);
  *id = best->id;
  return true;
}

void Scheduler::Sent(int64_t, uint64_t id) {
  if (Task* task = queue_.Taken(id)) queue_.End(task);
}

// Nothing is kept of a task that was sent; one that failed before is still in flight.
void Scheduler::Complete(int64_t now, uint64_t id, int32_t) { Sent(now, id); }

void Scheduler::Stats(bps_scheduler_stats* stats) const {
  stats->queued_tasks = queue_.tasks();
  stats->queued_bytes = queue_.bytes();
  stats->in_flight_tasks = queue_.taken();
  stats->in_flight_bytes = queue_.taken_bytes();
  stats->credit_bytes = 0;
}

}  // namespace byteps::priority
