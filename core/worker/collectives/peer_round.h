// peer_round.h - one round of a collective on this rank: who has announced what, and how far its plan is.
//
//     PeerRound round(id, number, serial);
//     round.report(rank).announcement = ...;                   // also before this rank has submitted it
//     round.Start(asked, own_rank, now);                      // submitted
//     round.Release(input);                                   // if it is held: its input is on the host
//     if (round.AllAnnounced()) round.Begin(plan, groups);    // memory for output and scratch, first steps
//     round.Finish(step);                                     // a transfer is complete
//     while (round.Compute()) {}                              // folds and copies
//     if (round.finished()) ...
//
// The states:
//
//     awaited -> gathering -> moving -> (over)
//        |           \-----------\---> releasing -> (over)
//        \-> refused -> (over)
//
//   awaited    others have announced it; this rank has not submitted it
//   gathering  submitted; not all have announced it
//   moving     the plan is being carried out
//   releasing  it has failed; others may still write into the memory they were shown
//   refused    it has failed before this rank submitted it
//
// Threads: none; driven by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_PEER_ROUND_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_PEER_ROUND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/aligned_memory.h"
#include "core/base/time.h"
#include "core/plugin/region.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/exchange_plan.h"
#include "core/worker/collectives/peer_announcement.h"

namespace byteps {

// Where a peer wants the bytes of a transfer to be written.
struct ShownMemory {
  std::array<uint8_t, wire::kMaxKey> key;
  uint32_t key_size = 0;
  uint64_t offset = 0;
  uint32_t immediate = 0;
};

// What one of the others has said of a round.
struct PeerReport {
  std::optional<PeerAnnouncement> announcement;
  std::map<uint32_t, ShownMemory> shown;                 // by transfer
  std::map<uint32_t, std::vector<std::byte>> delivered;  // DATA that came before the plan was made
  bool released = false;                                 // it touches our memory no more
  bool was_shown = false;                                // we have shown it memory
};

enum class PeerRoundState : uint8_t { kAwaited, kGathering, kMoving, kReleasing, kRefused };

class PeerRound {
 public:
  PeerRound(uint64_t id, uint64_t number, uint64_t serial) : id_(id), number_(number), serial_(serial) {}
  PeerRound(const PeerRound&) = delete;
  PeerRound& operator=(const PeerRound&) = delete;

  uint64_t id() const { return id_; }
  uint64_t number() const { return number_; }
  uint64_t serial() const { return serial_; }
  // A step of this round as one number, for events of its transfers.
  uint64_t UserOf(uint32_t step) const { return serial_ << kStepBits | step; }
  static uint64_t SerialOf(uint64_t user) { return user >> kStepBits; }
  static uint32_t StepOf(uint64_t user) { return static_cast<uint32_t>(user & ((uint64_t{1} << kStepBits) - 1)); }
  PeerRoundState state() const { return state_; }
  const Collective& asked() const { return asked_; }
  const std::vector<int32_t>& ranks() const { return asked_.set->ranks(); }
  size_t place() const { return place_; }
  Time deadline() const { return deadline_; }
  PeerReport& report(int32_t rank) { return reports_[rank]; }
  bool heard(int32_t rank) const {
    const auto found = reports_.find(rank);
    return found != reports_.end() && found->second.announcement.has_value();
  }

  // awaited -> gathering. With memory of GPUs it is held: it has its place among the rounds, but this rank announces
  // nothing before Release.
  void Start(Collective asked, int32_t own_rank, Time now);
  bool held() const { return held_; }
  // `input`: on the host.
  void Release(const std::byte* input);
  // The input as it goes to the others: the caller's, or scaled.
  const std::byte* input() const { return scaled_.empty() ? asked_.input : scaled_.data(); }
  bool AllAnnounced() const;
  std::vector<PeerAnnouncement> Announcements() const;

  // gathering -> moving. `groups`: of the set's ranks, for reductions.
  void Begin(ExchangePlan plan, std::vector<uint32_t> groups);
  const ExchangePlan& plan() const { return plan_; }
  // Behind Begin: the result comes to memory of the host first.
  void UseOutput(std::byte* output) { asked_.result->data = output; }
  // The step that receives a transfer; nullopt: there is none such.
  std::optional<uint32_t> ReceiveOf(size_t place, uint32_t transfer) const;
  std::byte* Address(const PlanPlace& at) const;
  // A step that needs others is done.
  void Finish(uint32_t step);
  // Carries out one fold or copy; false: there is none to do.
  bool Compute();
  bool computes() const { return !computable_.empty(); }
  // Sends that may go, of each place, in their order.
  std::deque<uint32_t>& sends(size_t place) { return sends_[place]; }
  bool finished() const { return state_ == PeerRoundState::kMoving && left_ == 0; }
  // The result, once finished: postscale, shape and splits.
  void Deliver();

  // -> releasing, or refused.
  void Fail(const absl::Status& why, Time release_at);
  const absl::Status& failure() const { return failure_; }
  Time release_at() const { return release_at_; }

  // Who has not announced it, or whose bytes have not come.
  std::vector<int32_t> Missing() const;

  Region output_region, scratch_region, input_region;
  size_t writes = 0;         // that have not ended
  absl::Status write_error;  // a write has failed; its peer is about to say why
  Time write_error_at = kNever;
  bool told_last_word = false;
  std::vector<uint32_t> immediates;  // claimed

 private:
  static constexpr uint64_t kStepBits = 24;

  void Unlock(uint32_t step);
  void Fold(const PlanStep& step);
  void MergeRows(const PlanStep& step);
  void TakeDots(const PlanStep& step);
  void Combine(const PlanStep& step);
  double* Wide(const PlanPlace& at) const { return reinterpret_cast<double*>(Address(at)); }

  const uint64_t id_;
  const uint64_t number_;
  const uint64_t serial_;
  PeerRoundState state_ = PeerRoundState::kAwaited;
  std::map<int32_t, PeerReport> reports_;
  Collective asked_;
  size_t place_ = 0;
  int32_t own_rank_ = 0;
  bool held_ = false;
  Time deadline_ = kNever;
  Time release_at_ = kNever;
  absl::Status failure_;

  AlignedMemory scaled_;
  AlignedMemory scratch_;
  ExchangePlan plan_;
  std::vector<uint32_t> groups_;
  std::vector<uint32_t> waits_;
  std::vector<bool> done_;
  std::vector<std::vector<uint32_t>> receives_;  // of each place, by transfer
  std::vector<std::deque<uint32_t>> sends_;
  std::deque<uint32_t> computable_;
  std::vector<const void*> sources_;  // of Fold: kept for its memory
  size_t left_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_PEER_ROUND_H_
