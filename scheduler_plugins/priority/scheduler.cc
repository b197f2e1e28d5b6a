#include "scheduler_plugins/priority/scheduler.h"

namespace byteps::priority {

bool Scheduler::Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  const scheduling::UrgencyQueue::Task* best = queue_.Best(now, budgets, count, [](const auto&) { return true; });
  if (best == nullptr) return false;
  const auto task = queue_.Take(*best);
  in_flight_.emplace(task.id, Started{task.tensor, task.bytes});
  in_flight_bytes_ += task.bytes;
  *id = task.id;
  return true;
}

void Scheduler::Sent(int64_t, uint64_t id) {
  const auto found = in_flight_.find(id);
  if (found == in_flight_.end()) return;
  in_flight_bytes_ -= found->second.bytes;
  queue_.Left(found->second.tensor);
  in_flight_.erase(found);
}

// Nothing is kept of a task that was sent; one that failed before is still in flight.
void Scheduler::Complete(uint64_t id) { Sent(0, id); }

void Scheduler::Stats(bps_scheduler_stats* stats) const {
  stats->queued_tasks = queue_.tasks();
  stats->queued_bytes = queue_.bytes();
  stats->in_flight_tasks = in_flight_.size();
  stats->in_flight_bytes = in_flight_bytes_;
  stats->credit_bytes = 0;
}

}  // namespace byteps::priority
