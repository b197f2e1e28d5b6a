#include "scheduler_plugins/credit/scheduler.h"

#include <algorithm>
#include <utility>

namespace byteps::credit {

void Scheduler::Enqueue(int64_t now, const bps_task& task) {
  largest_ = std::max(largest_, task.bytes);
  queue_.Add(now, task);
}

bool Scheduler::Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  const bool tuned = bound_.kind == Bound::Kind::kTuned;
  const scheduling::UrgencyQueue::Task* best = queue_.Best(
      now, budgets, count, [&](const auto& task) { return !tuned || paths_[task.peer].Admits(task.bytes); });
  if (best == nullptr) return false;
  if (!tuned && !in_flight_.empty()) {
    const uint64_t credit = bound_.Bytes(largest_);
    if (in_flight_bytes_ > credit || best->bytes > credit - in_flight_bytes_) return false;
  }
  const auto task = queue_.Take(*best);
  in_flight_.emplace(task.id, Started{task.peer, task.tensor,
                                      paths_[task.peer].Start(now, task.bytes, queue_.waiting(task.peer) > 0)});
  in_flight_bytes_ += task.bytes;
  *id = task.id;
  return true;
}

void Scheduler::Sent(int64_t now, uint64_t id) {
  const auto found = in_flight_.find(id);
  if (found == in_flight_.end()) return;
  paths_[found->second.peer].Sent(now, found->second.flight);
  in_flight_bytes_ -= found->second.flight.bytes;
  queue_.Left(found->second.tensor);
  in_flight_.erase(found);
}

// Nothing is kept of a task that was sent; one that failed before is still in flight.
void Scheduler::Complete(uint64_t id) {
  const auto found = in_flight_.find(id);
  if (found == in_flight_.end()) return;
  paths_[found->second.peer].Lost(found->second.flight);
  in_flight_bytes_ -= found->second.flight.bytes;
  queue_.Left(found->second.tensor);
  in_flight_.erase(found);
}

// A peer number is never used again: what is known of those that have gone is forgotten.
void Scheduler::Peers(const uint32_t* peers, size_t count) {
  std::erase_if(paths_, [&](const auto& path) {
    return path.second.in_flight() == 0 && std::find(peers, peers + count, path.first) == peers + count;
  });
}

void Scheduler::Stats(bps_scheduler_stats* stats) const {
  stats->queued_tasks = queue_.tasks();
  stats->queued_bytes = queue_.bytes();
  stats->in_flight_tasks = in_flight_.size();
  stats->in_flight_bytes = in_flight_bytes_;
  stats->credit_bytes = 0;
  if (bound_.kind == Bound::Kind::kTuned) {
    for (const auto& [peer, path] : paths_) stats->credit_bytes += path.credit();
  } else if (bound_.kind != Bound::Kind::kUnbounded) {
    stats->credit_bytes = bound_.Bytes(largest_);
  }
}

}  // namespace byteps::credit
