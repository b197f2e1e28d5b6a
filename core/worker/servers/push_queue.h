// push_queue.h - which partition is pushed next: the scheduler plugin, what each server lane can take, and how far
// ahead.
//
//     PushQueue queue(std::move(scheduler), &lanes, &transfers, &sender, outbox_bytes, &sink);
//     queue.Join(slot_bytes, inline_bytes, at_home);
//     queue.Enqueue(now, &partition, turn);
//     while (queue.Run(now)) ...                   // picks, and hands to the sender
//     queue.End(now, &partition, BPS_OK);          // its result is home, or it is given up
//
// Every partition is one task of the scheduler from Enqueue to End; queue.OnSent gives its credit back in between.
//
// Two rows. What a worker has sent is worth nothing before all the others have sent it, too. Of a tensor that is alone
// it keeps two parts for each server under way, one that is sent and one that is folded: with more the kernel, which
// sends for all connections at the same time, lets some run ahead of others, each worker other ones, and results wait
// for the last; and what is under way falls out of the caches. (A server that has more to do than others may have more
// of them: all its slots.) Where all servers share this worker's link, so that nothing crosses a network and the
// processors are the bound, one row does, and stays in the caches. All workers send parts in nearly the same order, so
// that some part is always complete; where they do not (a scheduler with an order of its own), nothing comes back, and
// after a while the rest goes, too.
//
// Threads: none; driven by the thread that drives the servers stage.
// Ownership: lanes, transfers, sender and sink outlive it.
#ifndef BYTEPS_CORE_WORKER_SERVERS_PUSH_QUEUE_H_
#define BYTEPS_CORE_WORKER_SERVERS_PUSH_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/plugin/scheduler.h"
#include "core/worker/servers/partition.h"
#include "core/worker/servers/push_sender.h"
#include "core/worker/servers/server_lanes.h"
#include "core/worker/servers/transfers.h"

namespace byteps {

class PushQueueSink {
 public:
  virtual ~PushQueueSink() = default;
  // It can never be sent. It is the queue's until End.
  virtual void OnPostFailed(Partition* partition, const absl::Status& why) = 0;
  // The scheduler has broken its contract.
  virtual void OnSchedulerFailed(const absl::Status& why) = 0;
};

class PushQueue {
 public:
  // `outbox_bytes`: more is not queued for one lane: what waits there cannot be overtaken.
  PushQueue(Scheduler scheduler, ServerLanes* lanes, const Transfers* transfers, PushSender* sender,
            uint64_t outbox_bytes, PushQueueSink* sink);

  // The lanes are known. `at_home`: all servers share this worker's link.
  void Join(uint64_t slot_bytes, uint64_t inline_bytes, bool at_home);

  // A transfer begins although nothing else is under way.
  void OnAlone(Time now) { slot_came_ = now; }
  // Its payload is ready. `turn`: its place among its tensor's parts.
  void Enqueue(Time now, Partition* partition, uint32_t turn);
  // Its bytes have left: the scheduler's credit returns.
  void OnSent(Time now, Partition* partition);
  // It is over: for the scheduler, and as far as it waits here. Nothing, if it was not enqueued.
  void End(Time now, Partition* partition, int32_t code);

  // Something may go that could not.
  void Wake() { wake_ = true; }
  // A scheduler may have something by time alone, and what was held back may go.
  void CheckTimers(Time now);
  // True if anything went.
  bool Run(Time now);
  // Looks which records without a write have left: one has when what still waits in the outbox is no more than what was
  // queued behind it. (Records of the endpoint itself wait there too: then this is known a little later.)
  bool SettleOutboxes(Time now);
  // When Run must be called although nothing arrives. `now`: of the last Run.
  Time NextTimer(Time now) const;
  // Nothing is sent any more.
  void Stop();

  // What all workers' links carry, as the slowest has told; 0: not told.
  void OnAgreedRate(Time now, uint32_t rate);
  const std::string& scheduler_name() const { return scheduler_.name(); }

 private:
  void UpdateBudget(Time now, size_t index);
  bool FarEnough(Time now) const;
  bool RetryHeld(Time now, ServerLane* lane);

  mutable Scheduler scheduler_;  // asking it for its timer is not const
  ServerLanes* const lanes_;
  const Transfers* const transfers_;
  PushSender* const sender_;
  const uint64_t outbox_bytes_;
  PushQueueSink* const sink_;

  std::vector<bps_budget> budgets_;                  // beside the lanes
  absl::flat_hash_map<uint64_t, Partition*> tasks_;  // by task: what the scheduler knows
  uint64_t next_task_ = 1;
  size_t queued_ = 0;  // tasks in the scheduler's queue
  size_t held_ = 0;
  uint64_t slot_bytes_ = 0;
  uint64_t inline_bytes_ = 0;
  uint32_t agreed_rate_ = 0;  // what the scheduler was told last

  // Of a tensor that is alone no more than so much is sent ahead.
  size_t rows_ahead_ = 0;
  size_t taken_slots_ = 0;  // of all lanes
  Time slot_came_ = 0;      // or the tensor began
  Time held_back_until_ = kNever;
  bool wake_ = false;
  bool stopped_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_PUSH_QUEUE_H_
