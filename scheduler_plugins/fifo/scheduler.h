// scheduler.h - first come, first served: the smallest scheduler, and the example to copy.
//
//     Scheduler scheduler;
//     scheduler.Enqueue(now, task);
//     uint64_t id;
//     if (scheduler.Next(now, budgets, count, &id)) ...      // the oldest task whose peer can take it
//
// Tasks of one peer go in the order in which they came: a small task does not overtake a large one that waits for room,
// so that none can wait for ever. A task whose `earliest` lies ahead joins its peer's queue when that time has come.
//
// Threads: one at a time. Errors: none; the library checks what it passes in.
#ifndef BYTEPS_SCHEDULER_PLUGINS_FIFO_SCHEDULER_H_
#define BYTEPS_SCHEDULER_PLUGINS_FIFO_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "abi/scheduler.h"

namespace byteps::fifo {

class Scheduler {
 public:
  void Enqueue(int64_t now, const bps_task& task);
  bool Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id);
  void Sent(int64_t now, uint64_t id);
  void Complete(int64_t now, uint64_t id, int32_t outcome);
  void Withdraw(uint64_t id);
  void Stats(bps_scheduler_stats* stats) const;
  int64_t WakeAt() const;

 private:
  // When a task may go, and the how manieth it came.
  using Moment = std::pair<int64_t, uint64_t>;
  // The tasks of one peer by the order in which they came.
  using Queue = std::map<uint64_t, bps_task>;

  // Where a queued task is.
  struct Place {
    bool delayed;
    uint32_t peer;
    Moment moment;
  };

  void Join(uint64_t number, const bps_task& task);

  uint64_t arrivals_ = 0;
  std::unordered_map<uint32_t, Queue> queues_;        // by peer; none is empty
  std::map<Moment, bps_task> delayed_;                // tasks whose time may not have come
  std::unordered_map<uint64_t, Place> places_;        // of queued tasks, by id
  std::unordered_map<uint64_t, uint64_t> in_flight_;  // bytes by id, from Next to Sent
  uint64_t queued_bytes_ = 0;
  uint64_t in_flight_bytes_ = 0;
};

}  // namespace byteps::fifo

#endif  // BYTEPS_SCHEDULER_PLUGINS_FIFO_SCHEDULER_H_
