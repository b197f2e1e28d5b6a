// scheduler.h - the most urgent first, and no more on the way than the path needs: the default.
//
//     Scheduler scheduler(*Bound::Parse(text, &reason), UrgencyQueue::kWindow, paced);
//     scheduler.Enqueue(now, task);
//     uint64_t id;
//     if (scheduler.Next(now, budgets, count, &id)) ...      // the most urgent task there is room and credit for
//     scheduler.Sent(now, id);                                // its credit is back
//
// What has been started cannot be overtaken, so nothing is started before it must be. Tuned (the default), each peer
// has a credit of its own, learned from its path (path.h): one slow server holds up no other. With a bound, the
// bytes to all peers together stay within it. In both cases one task may always be on its way, however large it is, so
// that nothing is stuck.
//
// A bound belongs to all peers: if the most urgent task does not fit into what is left, nothing else goes before
// it.
//
// Threads: one at a time. Errors: none; the library checks what it passes in.
#ifndef BYTEPS_SCHEDULER_PLUGINS_CREDIT_SCHEDULER_H_
#define BYTEPS_SCHEDULER_PLUGINS_CREDIT_SCHEDULER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "abi/scheduler.h"
#include "scheduler_plugins/common/slot_table.h"
#include "scheduler_plugins/common/urgency_queue.h"
#include "scheduler_plugins/credit/bound.h"
#include "scheduler_plugins/credit/pace.h"
#include "scheduler_plugins/credit/path.h"
#include "scheduler_plugins/credit/restart.h"

namespace byteps::credit {

class Scheduler {
 public:
  // `window`: see UrgencyQueue.
  // `paced`: tuned, no faster than the link (pace.h), and gently behind silence (restart.h).
  Scheduler(const Bound& bound, uint32_t window, bool paced)
      : bound_(bound), paced_(paced && bound.kind == Bound::Kind::kTuned), queue_(window) {}

  void Enqueue(int64_t now, const bps_task& task);
  bool Next(int64_t now, const bps_budget* budgets, size_t count, uint64_t* id);
  void Sent(int64_t now, uint64_t id);
  void Complete(int64_t now, uint64_t id, int32_t outcome);
  void Withdraw(uint64_t id);
  void Peers(const uint32_t* peers, size_t count);
  void Stats(bps_scheduler_stats* stats) const;
  uint64_t Rate() const { return static_cast<uint64_t>(pace_.rate()); }
  void Agreed(int64_t, uint64_t rate) { pace_.Agreed(rate); }
  // Before its pace opens nothing goes, whatever joins.
  int64_t WakeAt() const { return opens_at_ != INT64_MAX ? opens_at_ : queue_.NextJoin(); }

 private:
  using Task = scheduling::UrgencyQueue::Task;

  // What was sent and is not complete.
  struct Away {
    uint32_t peer = 0;
    uint64_t bytes = 0;
  };

  uint32_t NewFlight();
  void End(Task* task);

  const Bound bound_;
  const bool paced_;
  scheduling::UrgencyQueue queue_;
  std::unordered_map<uint32_t, Path> paths_;  // by peer
  std::vector<Path::Flight> flights_;         // of tasks from Next to Sent; their notes say where
  std::vector<uint32_t> unused_flights_;
  uint64_t largest_ = 0;  // task so far
  Pace pace_;
  Restart restart_;
  scheduling::SlotTable<Away> away_;  // paced
  bool waited_ = true;                // something was there to go since the last result
  int64_t waits_since_ = INT64_MAX;   // something is there to go since then
  int64_t opens_at_ = INT64_MAX;      // something waits for its pace until then
};

}  // namespace byteps::credit

#endif  // BYTEPS_SCHEDULER_PLUGINS_CREDIT_SCHEDULER_H_
