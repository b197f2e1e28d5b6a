// scheduler.h - the most urgent first: larger priority, then the tensor declared earlier, then the lower part.
//
//     Scheduler scheduler(UrgencyQueue::kWindow);
//     scheduler.Enqueue(now, task);
//     uint64_t id;
//     if (scheduler.Next(now, budgets, count, &id)) ...      // the most urgent task whose peer can take it
//
// A late urgent tensor overtakes all that is queued, between two partitions: what has been started is not taken back.
// How much that is, is bounded by the peers' budgets alone; `credit` keeps it as small as the path allows.
//
// Threads: one at a time. Errors: none; the library checks what it passes in.
#ifndef BYTEPS_SCHEDULER_PLUGINS_PRIORITY_SCHEDULER_H_
#define BYTEPS_SCHEDULER_PLUGINS_PRIORITY_SCHEDULER_H_

#include <cstddef>
#include <cstdint>

#include "abi/scheduler.h"
#include "scheduler_plugins/common/urgency_queue.h"

namespace byteps::priority {

class Scheduler {
 public:
  // `window`: see UrgencyQueue.
  explicit Scheduler(uint32_t window) : queue_(window) {}

  void Enqueue(int64_t now, const bps_task& task) { queue_.Add(now, task); }
  bool Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id);
  void Sent(int64_t now, uint64_t id);
  void Complete(int64_t now, uint64_t id, int32_t outcome);
  void Withdraw(uint64_t id) { queue_.Remove(id); }
  void Stats(bps_scheduler_stats* stats) const;
  int64_t WakeAt() const { return queue_.NextJoin(); }

 private:
  using Task = scheduling::UrgencyQueue::Task;

  scheduling::UrgencyQueue queue_;
};

}  // namespace byteps::priority

#endif  // BYTEPS_SCHEDULER_PLUGINS_PRIORITY_SCHEDULER_H_
