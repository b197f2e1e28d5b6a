#include "scheduler_plugins/fifo/scheduler.h"

namespace byteps::fifo {

void Scheduler::Enqueue(int64_t, const bps_task& task) {
  const uint64_t number = arrivals_++;
  queued_bytes_ += task.bytes;
  if (task.earliest == 0) {
    Join(number, task);
    return;
  }
  const Moment moment(task.earliest, number);
  delayed_.emplace(moment, task);
  places_[task.id] = {true, task.peer, moment};
}

void Scheduler::Join(uint64_t number, const bps_task& task) {
  queues_[task.peer].emplace(number, task);
  places_[task.id] = {false, task.peer, {0, number}};
}

bool Scheduler::Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  while (!delayed_.empty() && delayed_.begin()->first.first <= now) {
    const auto due = delayed_.begin();
    // It comes now: behind those that are waiting, whenever it was enqueued.
    Join(arrivals_++, due->second);
    delayed_.erase(due);
  }
  // Each peer offers its oldest task; the oldest of those that fit goes.
  const Queue::value_type* oldest = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const auto queue = queues_.find(budgets[i].peer);
    if (queue == queues_.end() || budgets[i].tasks == 0) continue;
    const Queue::value_type& head = *queue->second.begin();
    if (head.second.bytes > budgets[i].bytes) continue;
    if (oldest == nullptr || head.first < oldest->first) oldest = &head;
  }
  if (oldest == nullptr) return false;
  *id = oldest->second.id;
  const uint64_t bytes = oldest->second.bytes;
  Withdraw(*id);
  in_flight_[*id] = bytes;
  in_flight_bytes_ += bytes;
  return true;
}

void Scheduler::Sent(int64_t, uint64_t id) {
  const auto found = in_flight_.find(id);
  if (found == in_flight_.end()) return;
  in_flight_bytes_ -= found->second;
  in_flight_.erase(found);
}

// Nothing is kept of a task that was sent; one that failed before is still in flight.
void Scheduler::Complete(int64_t now, uint64_t id, int32_t) { Sent(now, id); }

void Scheduler::Withdraw(uint64_t id) {
  const auto place = places_.find(id);
  if (place == places_.end()) return;
  const auto& [delayed, peer, moment] = place->second;
  if (delayed) {
    const auto task = delayed_.find(moment);
    queued_bytes_ -= task->second.bytes;
    delayed_.erase(task);
  } else {
    const auto queue = queues_.find(peer);
    const auto task = queue->second.find(moment.second);
    queued_bytes_ -= task->second.bytes;
    queue->second.erase(task);
    if (queue->second.empty()) queues_.erase(queue);
  }
  places_.erase(place);
}

void Scheduler::Stats(bps_scheduler_stats* stats) const {
  stats->queued_tasks = places_.size();
  stats->queued_bytes = queued_bytes_;
  stats->in_flight_tasks = in_flight_.size();
  stats->in_flight_bytes = in_flight_bytes_;
  stats->credit_bytes = 0;
}

int64_t Scheduler::WakeAt() const { return delayed_.empty() ? INT64_MAX : delayed_.begin()->first.first; }

}  // namespace byteps::fifo
