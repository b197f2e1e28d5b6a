#include "scheduler_plugins/credit/scheduler.h"

#include <algorithm>

#include "abi/byteps.h"

namespace byteps::credit {

void Scheduler::Enqueue(int64_t now, const bps_task& task) {
  largest_ = std::max(largest_, task.bytes);
  if (paced_) pace_.Arrived(task, queue_.tasks() > 0);
  if (queue_.tasks() == 0) waits_since_ = now;
  queue_.Add(now, task);
}

bool Scheduler::Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  const bool tuned = bound_.kind == Bound::Kind::kTuned;
  opens_at_ = INT64_MAX;
  if (paced_) {
    const int64_t opens = std::max(pace_.OpensAt(), restart_.OpensAt());
    if (opens > now) {
      if (queue_.tasks() > 0) opens_at_ = opens;
      return false;
    }
  }
  Task* best = queue_.Best(now, budgets, count,
                           [&](const Task& task) { return !tuned || paths_[task.peer].Admits(task.bytes); });
  if (best == nullptr) return false;
  if (!tuned && queue_.taken() > 0) {
    const uint64_t credit = bound_.Bytes(largest_);
    if (queue_.taken_bytes() > credit || best->bytes > credit - queue_.taken_bytes()) return false;
  }
  queue_.Take(best);
  if (paced_) {
    pace_.Started(now, best->bytes, queue_.TensorOf(best));
    restart_.Started(now, best->peer, best->bytes);
  }
  waited_ = waited_ && queue_.tasks() > 0;
  if (queue_.tasks() == 0) waits_since_ = INT64_MAX;
  best->note = NewFlight();
  flights_[best->note] = paths_[best->peer].Start(now, best->bytes, queue_.waits(best->peer));
  *id = best->id;
  return true;
}

void Scheduler::Sent(int64_t now, uint64_t id) {
  Task* task = queue_.Taken(id);
  if (task == nullptr) return;
  paths_[task->peer].Sent(now, flights_[task->note]);
  if (paced_) away_[away_.Add(id)] = {task->peer, task->bytes};
  End(task);
}

// Of a task that was sent nothing is kept but its bytes; one that ends before is still in flight.
void Scheduler::Complete(int64_t now, uint64_t id, int32_t outcome) {
  Away away;
  if (Task* task = queue_.Taken(id)) {
    away = {task->peer, task->bytes};
    paths_[task->peer].Lost(flights_[task->note]);
    End(task);
  } else if (const uint32_t sent = away_.Find(id); sent != scheduling::SlotTable<Away>::kNone) {
    away = away_[sent];
    away_.Free(id);
  } else {
    return;
  }
  if (!paced_) return;
  if (outcome != BPS_OK) {
    pace_.Lost(now, away.bytes);
    restart_.Lost(away.peer);
    return;
  }
  pace_.Home(now, away.bytes, waited_);
  waited_ = queue_.tasks() > 0;
  restart_.Home(now, away.peer, away.bytes, waits_since_);
}

void Scheduler::Withdraw(uint64_t id) {
  queue_.Remove(id);
  if (queue_.tasks() == 0) waits_since_ = INT64_MAX;
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
  pace_.Forget();
  restart_.Forget();
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
