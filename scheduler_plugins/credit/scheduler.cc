#include "scheduler_plugins/credit/scheduler.h"

#include <algorithm>

namespace byteps::credit {

void Scheduler::Enqueue(int64_t now, const bps_task& task) {
  largest_ = std::max(largest_, task.bytes);
  queue_.Add(now, task);
}

bool Scheduler::Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  const bool tuned = bound_.kind == Bound::Kind::kTuned;
  Task* best = queue_.Best(now, budgets, count,
                           [&](const Task& task) { return !tuned || paths_[task.peer].Admits(task.bytes); });
  if (best == nullptr) return false;
  if (!tuned && queue_.taken() > 0) {
    const uint64_t credit = bound_.Bytes(largest_);
    if (queue_.taken_bytes() > credit || best->bytes > credit - queue_.taken_bytes()) return false;
  }
  queue_.Take(best);
  best->note = NewFlight();
  flights_[best->note] = paths_[best->peer].Start(now, best->bytes, queue_.waits(best->peer));
  *id = best->id;
  return true;
}

void Scheduler::Sent(int64_t now, uint64_t id) {
  Task* task = queue_.Taken(id);
  if (task == nullptr) return;
  paths_[task->peer].Sent(now, flights_[task->note]);
  End(task);
}

// Nothing is kept of a task that was sent; one that failed before is still in flight.
void Scheduler::Complete(uint64_t id) {
  Task* task = queue_.Taken(id);
  if (task == nullptr) return;
  paths_[task->peer].Lost(flights_[task->note]);
  End(task);
}

uint32_t Scheduler::NewFlight() {
  if (unused_flights_.empty()) {
    flights_.emplace_back();
    return static_cast<uint32_t>(flights_.size() - 1);
  }
  const uint32_t index = unused_flights_.back();
  unused_flights_.pop_back();
  return index;
}

void Scheduler::End(Task* task) {
  unused_flights_.push_back(task->note);
  queue_.End(task);
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
  stats->in_flight_tasks = queue_.taken();
  stats->in_flight_bytes = queue_.taken_bytes();
  stats->credit_bytes = 0;
  if (bound_.kind == Bound::Kind::kTuned) {
    for (const auto& [peer, path] : paths_) stats->credit_bytes += path.credit();
  } else if (bound_.kind != Bound::Kind::kUnbounded) {
    stats->credit_bytes = bound_.Bytes(largest_);
  }
}

}  // namespace byteps::credit
