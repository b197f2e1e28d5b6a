// deliveries.h - results on their way to the workers.
//
//     Deliveries deliveries(&endpoint);
//     deliveries.AddResult(round, std::move(block));      // to all that have contributed
//     deliveries.AddInlineResult(round, bytes);           // the same within the records
//     deliveries.Pump(now);  deliveries.OnRoom(peer);  deliveries.OnWritten(user);
//
// A result stays in memory until every write of it has ended: a slow worker does not lose it to the next round. It is
// written to where the worker's PUSH said, else into a slot that the worker lent, else (the worker lends none) put into
// the record if that can hold it. What the transport or the worker cannot take now waits, in order, for OnRoom.
//
// With a scheduler (UseScheduler) results wait with it, and it says which goes next and how much may be under way: a
// late urgent one overtakes those of large tensors. Results within a record do not wait.
//
// Threads: none.
#ifndef BYTEPS_SERVER_REDUCER_DELIVERIES_H_
#define BYTEPS_SERVER_REDUCER_DELIVERIES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/link/endpoint.h"
#include "core/plugin/scheduler.h"
#include "core/wire/wire.h"
#include "server/reducer/pool.h"
#include "server/reducer/round.h"

namespace byteps {

// One reduced partition, shared by those it is written to.
struct Result {
  Block block;
  uint64_t bytes = 0;
  uint32_t users = 0;
  std::optional<uint32_t> checksum;  // once it was wanted
};

class Deliveries {
 public:
  explicit Deliveries(Endpoint* endpoint) : endpoint_(endpoint) {}

  // Before the first result. `scheduler` was made for BPS_DIRECTION_RESULT.
  void UseScheduler(Scheduler scheduler) { scheduler_.emplace(std::move(scheduler)); }
  // Those that results may go to from now on.
  void SetPeers(std::span<const PeerId> peers) {
    if (scheduler_) scheduler_->Peers(peers);
  }
  // Starts what the scheduler lets go. True if anything was started.
  bool Pump(Time now);
  Time NextTimer() const { return scheduler_ ? scheduler_->WakeAt(now_) : kNever; }
  // Not OK: the scheduler has broken its contract, and nothing goes any more.
  const absl::Status& status() const { return status_; }

  // The result of a round, for all that have contributed: in `block`, or, if that is empty, it has been written to
  // where every member wants it.
  void AddResult(const Round& round, Block block);
  // The same within the records.
  void AddInlineResult(const Round& round, std::span<const std::byte> bytes);

  // What waits for this peer may go now.
  void OnRoom(PeerId peer);
  void OnWritten(uint64_t user);
  // Takes back what waits for the peer. What it waited for, if there was such a delivery and nothing of it was sent.
  std::optional<std::string> Withdraw(PeerId peer, uint64_t key, uint64_t round, uint32_t part);
  // Drops all that waits for the peer. What is being written ends with OnWritten.
  void Drop(PeerId peer);

  // Results in memory.
  size_t results() const { return results_.size() - free_results_.size(); }
  // Was memory given back since the last call?
  bool TookBack() { return std::exchange(took_back_, false); }

 private:
  struct Delivery {
    wire::DataHeader header;
    wire::MemoryRef memory;
    Result* result;
    uint64_t task = 0;  // of the scheduler, if there is one
  };
  struct Write {
    Result* result = nullptr;
    uint64_t task = 0;
  };
  // What one peer awaits.
  struct Waiting {
    explicit Waiting(std::pmr::memory_resource* memory) : queued(memory), ready(memory) {}
    std::pmr::map<uint64_t, Delivery> queued;  // by task: with the scheduler
    std::pmr::deque<Delivery> ready;           // for room
  };

  Result* Make(Block block, uint64_t bytes);
  void Add(PeerId peer, const wire::DataHeader& header, const wire::MemoryRef& memory, Result* result);
  // Written already.
  void AddInPlace(PeerId peer, const wire::DataHeader& header, uint64_t bytes);
  // Payload (which may be empty) within the record.
  void AddInline(PeerId peer, const wire::DataHeader& header, std::span<const std::byte> payload);
  bool Post(PeerId peer, Delivery* delivery);
  void EndTask(uint64_t task, int32_t code);
  void Release(Result* result);

  Endpoint* const endpoint_;
  std::pmr::unsynchronized_pool_resource memory_;  // of what waits
  std::map<PeerId, Waiting> waiting_;              // ordered: a simulated run must repeat itself
  mutable std::optional<Scheduler> scheduler_;     // asking it for its timer is not const
  std::vector<bps_budget> budgets_;
  uint64_t next_task_ = 1;
  absl::Status status_;
  Time now_ = 0;
  absl::flat_hash_set<PeerId> lenders_;  // peers that have lent slots
  std::vector<Write> writes_;            // by `user` of the write
  std::vector<uint64_t> free_writes_;
  std::vector<std::unique_ptr<Result>> results_;
  std::vector<Result*> free_results_;
  bool took_back_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_DELIVERIES_H_
