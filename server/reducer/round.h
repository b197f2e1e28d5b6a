// round.h - one round of one partition: who has contributed what, and what has been folded.
//
// States of a round:
//
//   gathering --> [ready] --> starved --> recalling --> over
//       \____________\____________________________/
//   gathering  contributions come in; they wait in their slots, or parked in blocks, or where they are at their workers
//   ready      every member has announced, and some are still at their workers: it waits for its turn to be folded
//   starved    every member has announced; there is no memory for the result, or something had to be dropped
//   recalling  has an accumulator: what was dropped is asked for again, one contribution at a time, in rank order
//   over       folded: its result is on the way
//   failed     (from any) every member that has contributed was told why
//
// States of a contribution:
//
//   absent --> coming --> in slot --> folded
//       \          \          \-----> parked --> folded
//        \          \-------> dropped --> asked --> (coming, in slot, ...)
//         \--> present
//          \--> at worker --> folded, or dropped
//   absent     not announced
//   coming     announced, its bytes have not landed
//   in slot    waits where it landed
//   parked     waits in a block
//   dropped    was here, but there was no memory
//   asked      dropped, and SEND_AGAIN was sent
//   folded     in the accumulator
//   present    takes part without a payload (broadcast, not the root; no elements)
//   at worker  is read from the worker's memory when it is folded; dropped if that turns out to be impossible
//
// Contributors are numbered in rank order; who they are is in contributors.h. Whatever the way, the result is the fold
// of core/reduce/reduce.h over [first(), last()) of them: all, or a broadcast's root.
//
// Threads: none. A Round is used again and again by the Reducer, which drives it.
#ifndef BYTEPS_SERVER_REDUCER_ROUND_H_
#define BYTEPS_SERVER_REDUCER_ROUND_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/reduce/reduce.h"
#include "core/wire/wire.h"
#include "server/reducer/contributors.h"
#include "server/reducer/pool.h"

namespace byteps {

struct KeptValue;
struct Part;
struct ServedSession;

enum class RoundState : uint8_t { kGathering, kReady, kAwaitingMemory, kRecalling, kOver, kFailed };
enum class ContributionState : uint8_t {
  kAbsent,
  kComing,
  kInSlot,
  kParked,
  kDropped,
  kAsked,
  kFolded,
  kPresent,
  kAtWorker
};

const char* RoundStateName(RoundState state);
const char* ContributionStateName(ContributionState state);
bool RoundMayMove(RoundState from, RoundState to);

struct Contribution {
  ContributionState state = ContributionState::kAbsent;
  uint32_t rank = 0;                 // of the worker that gives it, unless absent
  uint32_t immediate = 0;            // coming, in slot
  uint64_t key = 0;                  // as this worker named the tensor
  Block block;                       // parked
  std::optional<uint32_t> checksum;  // of the payload, if it was told
  wire::MemoryRef memory;            // where the worker wants the result
  bool in_place = false;             // it came in place, and its result goes back in place, too
  wire::MemoryRef source;            // then: where it is

  // Is its payload here and not folded yet?
  bool waiting() const { return state == ContributionState::kInSlot || state == ContributionState::kParked; }
};

// What says of which round of which part a record is.
wire::RoundBody BodyOf(const wire::DataHeader& header);

class Round {
 public:
  // Begins a round as `header`, the first PUSH of it, describes it. `who` must stay until End; `shape` is as in Push.
  void Begin(Time now, ServedSession* session, Part* part, const wire::DataHeader& header, const Contributors& who,
             std::span<const std::byte> shape = {});
  // Forgets everything; blocks are given back.
  void End();

  RoundState state() const { return state_; }
  // Throws std::logic_error if there is no such arrow: a defect.
  void Move(RoundState to);

  ServedSession* session() const { return session_; }
  Part* part() const { return part_; }
  // Of the first PUSH, with what is the sender's own taken out: the description of the round.
  const wire::DataHeader& header() const { return header_; }
  // One more PUSH: the result is as urgent as to whom it is most urgent, and tells all of the slowest link.
  void MergeHints(const wire::DataHeader& push) {
    header_.priority = std::max(header_.priority, push.priority);
    if (header_.rate == 0 || (push.rate != 0 && push.rate < header_.rate)) header_.rate = push.rate;
  }
  // "push_pull (sum) of float32, 2x4", for errors.
  std::string DescribeAsked() const;
  uint64_t number() const { return header_.round; }
  uint64_t bytes() const { return bytes_; }
  // Of the whole tensor, about.
  uint64_t tensor_bytes() const { return bytes_ * header_.parts; }
  bool broadcast() const { return header_.operation == wire::Operation::kBroadcast; }

  uint32_t contributors() const { return static_cast<uint32_t>(contributions_.size()); }
  Contribution& of(uint32_t index) { return contributions_[index]; }
  const Contribution& of(uint32_t index) const { return contributions_[index]; }
  void SetState(uint32_t index, ContributionState state);
  // How many are in this state.
  uint32_t count(ContributionState state) const { return counts_[static_cast<size_t>(state)]; }
  bool all_announced() const { return count(ContributionState::kAbsent) == 0; }
  // How many have bytes that are here, or can be had at any time, or need none.
  uint32_t here() const {
    return count(ContributionState::kInSlot) + count(ContributionState::kParked) + count(ContributionState::kFolded) +
           count(ContributionState::kPresent) + count(ContributionState::kAtWorker);
  }

  // The fold.
  uint32_t first() const { return first_; }
  uint32_t last() const { return last_; }
  Reduction reduction() const { return reduction_; }
  std::span<const uint32_t> groups() const { return groups_; }
  uint64_t elements() const { return elements_; }
  size_t accumulator_bytes() const { return AccumulationBytes(reduction_, groups_, elements_); }
  bool has_accumulator() const { return accumulator_.has_value(); }
  void StartAccumulator(Block memory);
  Accumulation& accumulator() { return *accumulator_; }
  Block TakeAccumulator();
  // The next in rank order; last() when all are folded.
  uint32_t next() const { return accumulator_ ? first_ + accumulator_->added() : first_; }
  // How many contributions from next() on wait here.
  uint32_t prefix() const;

  Time opened() const { return opened_; }
  Time deadline() const { return deadline_; }
  void ShortenDeadline(Time deadline) { deadline_ = std::min(deadline_, deadline); }
  // It cannot be folded any more, and why. Until the deadline a member may have better words for it.
  void SetPendingError(const absl::Status& why) { pending_error_ = why; }
  const absl::Status& pending_error() const { return pending_error_; }

  // Those that wait have been told for whom.
  bool stall_told = false;
  // Of an asynchronous tensor: what its one contribution is added to.
  KeptValue* kept = nullptr;

  // "round 7 of part 0 of key 0x10000 gathering: 3 absent, 1 in slot"
  std::string Describe() const;

  size_t open_index = 0;     // in the reducer's list of rounds that are neither over nor failed
  uint64_t ready_order = 0;  // when it became ready

 private:
  RoundState state_ = RoundState::kOver;
  ServedSession* session_ = nullptr;
  Part* part_ = nullptr;
  wire::DataHeader header_{};
  uint32_t told_shape_ = 0;         // as in the header of the first PUSH
  std::vector<std::byte> extents_;  // likewise
  uint64_t bytes_ = 0;
  std::vector<Contribution> contributions_;
  uint32_t counts_[9] = {};
  uint32_t first_ = 0;
  uint32_t last_ = 0;
  Reduction reduction_{};
  std::span<const uint32_t> groups_;
  uint64_t elements_ = 0;
  Block memory_;  // of the accumulator
  std::optional<Accumulation> accumulator_;
  Time opened_ = 0;
  Time deadline_ = kNever;
  absl::Status pending_error_;
};

// "push_pull (sum) of float32, 2x4": what a PUSH asks, for errors; without a shape, its part and elements.
std::string DescribeRequest(const wire::DataHeader& header, std::span<const std::byte> shape);
// Do two PUSHes of one round ask the same?
bool SameRequest(const wire::DataHeader& a, const wire::DataHeader& b);

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_ROUND_H_
