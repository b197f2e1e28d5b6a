// local_work.h - the hands of a worker in the local stage: folds and copies, a block at a time.
//
//     LocalWork work(std::move(scheduler), &sink);
//     work.Join(&transport, group_sizes, members, own);
//     work.Add(now, round, {LocalPiece::Kind::kReduce, first, last});
//     while (work.Run(now)) ...                        // sink->OnPiece(round) when it is done
//
// What is done next is the choice of the scheduler plugin, made for BPS_DIRECTION_LOCAL: it has one task for each
// round, its next piece.
//
// Threads: none; driven by the thread that drives the local stage.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_WORK_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_WORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/link/block_fold.h"
#include "core/plugin/scheduler.h"
#include "core/worker/local/local_round.h"

namespace byteps {

class LocalWorkSink {
 public:
  virtual ~LocalWorkSink() = default;
  // Its piece is done: it may get the next.
  virtual void OnPiece(LocalRound* round) = 0;
  // The memory of member `culprit` could not be read or written. The piece is still the round's.
  virtual void OnPieceFailed(LocalRound* round, int32_t code, size_t culprit) = 0;
  // The scheduler has broken its contract.
  virtual void OnWorkFatal(const absl::Status& why) = 0;
};

class LocalWork {
 public:
  // What is done before the scheduler is asked again.
  static constexpr uint64_t kPieceBytes = 8 * BlockFold::kBlockBytes;

  LocalWork(Scheduler scheduler, LocalWorkSink* sink);

  // `group_sizes`: of the reduction within the host.
  void Join(Transport* transport, std::vector<uint32_t> group_sizes, size_t members, size_t own);

  // Gives a round that has no piece its next one. round->memory says where the bytes of all are.
  void Add(Time now, LocalRound* round, const LocalPiece& piece);
  // Takes the piece back, if there is one.
  void Withdraw(Time now, LocalRound* round);

  // Folds the payloads that came with the offers into the target. `partial`: the contribution of a host. The index of a
  // member that has sent none; nothing: it is done.
  std::optional<size_t> FoldSmall(LocalRound* round, bool partial);
  // A member's payload becomes the target. False: there is none.
  static bool CopySmall(LocalRound* round, size_t index);

  // One block. True if there was one.
  bool Run(Time now);
  Time NextTimer(Time now) const;
  // Has the scheduler kept the round's piece until now?
  bool Queued(const LocalRound* round) const { return round->task != 0 && round != current_; }
  const std::string& scheduler_name() const { return scheduler_.name(); }
  // Nothing is done any more.
  void Halt() { halted_ = true; }

 private:
  bool Pick(Time now);
  int32_t Block(LocalRound* round, uint64_t bytes, size_t* culprit);
  void EndTask(Time now, int32_t code);

  mutable Scheduler scheduler_;  // asking it for its timer is not const
  LocalWorkSink* const sink_;
  std::unique_ptr<BlockFold> fold_;
  std::vector<uint32_t> group_sizes_;
  size_t own_ = 0;
  std::vector<const void*> inputs_;                   // of FoldSmall: kept for its memory
  absl::flat_hash_map<uint64_t, LocalRound*> tasks_;  // by task: what the scheduler knows
  LocalRound* current_ = nullptr;                     // whose piece is being worked on
  size_t queued_ = 0;                                 // tasks in the scheduler's queue
  uint64_t next_task_ = 1;
  bool pick_ = false;  // the scheduler may have something that it had not
  bool halted_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_WORK_H_
