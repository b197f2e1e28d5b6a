#include "scheduler_plugins/credit/pace.h"

#include <algorithm>
#include <utility>

namespace byteps::credit {
namespace {

// A probe below this share of the rate is a slower link; between this and kAgain it is the same link, a little
// disturbed, or the pace of others that do not probe.
constexpr double kSlower = 0.85;
constexpr double kAgain = 0.995;
// Results come home when all have pushed, so no worker sees many more than the slowest link carries. A worker that
// tells less than this share of it is wrong, and keeps no other waiting.
constexpr double kLeast = 0.5;

int64_t TimeOf(double bytes, double rate) { return static_cast<int64_t>(bytes * 1e9 / rate); }

}  // namespace

const char* PaceStateName(Pace::State state) {
  switch (state) {
    case Pace::State::kLearn:
      return "learn";
    case Pace::State::kHold:
      return "hold";
  }
  return "unknown";
}

void Pace::Arrived(const bps_task& task, bool others_wait) {
  if (others_wait && task.priority > last_priority_) urgent_until_ = round_ + kUrgentRounds;
  last_priority_ = task.priority;
  if (task.round == 0) return;
  if (leader_round_ == 0 || ++since_leader_ > kLeaderTasks) {
    leader_ = task.tensor;
    leader_round_ = task.round;
    since_leader_ = 0;
  } else if (task.tensor == leader_) {
    since_leader_ = 0;
    if (task.round != leader_round_) NextRound(task.round);
  }
}

void Pace::NextRound(uint32_t number) {
  leader_round_ = number;
  ++round_;
  const uint64_t probe = number - number % kProbeRounds;
  const bool learning =
      round_ < kLearnRounds || probe == kFirstProbe || probe == 2 * kFirstProbe || probe % kProbeEvery == 0;
  if (learning && !learning_) {
    fastest_ = 0;
    measured_ = 0;
    measures_ = false;
    window_begin_ = -1;
  }
  learning_ = learning;
  if (std::exchange(measures_, false)) ++measured_;
  const bool faster = rate_ > 0 && fastest_ >= kAgain * rate_;
  if (learning || (measured_ < kProbeRounds && !faster)) return;
  if (fastest_ < kSlower * rate_ || fastest_ >= kAgain * rate_) rate_ = fastest_;
  fastest_ = 0;
  measured_ = 0;
}

void Pace::Started(int64_t now, uint64_t bytes, uint64_t tensor) {
  largest_ = std::max(bytes, largest_ - largest_ / 64);
  away_ += bytes;
  if (tensor != run_tensor_) {
    run_tensor_ = tensor;
    run_bytes_ = 0;
  }
  run_bytes_ += bytes;
  if (!InForce()) {
    // What goes while nothing is held may be faster than the clock, and is not held against what follows.
    busy_until_ = now;
    lead_ = 0;
    return;
  }
  if (busy_until_ < now) lead_ = 0;  // all has left
  const auto size = static_cast<double>(bytes);
  const double rate = pace() / kGain;
  const bool fast = run_bytes_ > kLongRun && lead_ < kMostLead;
  const int64_t takes = TimeOf(size, (fast ? kLongGain : kGain) * rate);
  lead_ = std::max<int64_t>(0, lead_ + TimeOf(size, rate) - takes);
  busy_until_ = std::max(busy_until_, now) + takes;
}

void Pace::Home(int64_t now, uint64_t bytes, bool waits) {
  Lost(now, bytes);
  if (state() == State::kHold) return;
  if (window_begin_ < 0 || !waits) {
    window_begin_ = now;
    window_bytes_ = 0;
    return;
  }
  window_bytes_ += bytes;
  if (window_bytes_ < kWindow * largest_ || now == window_begin_) return;
  fastest_ = std::max(fastest_, static_cast<double>(window_bytes_) * 1e9 / static_cast<double>(now - window_begin_));
  measures_ = true;
  window_begin_ = now;
  window_bytes_ = 0;
}

void Pace::Lost(int64_t now, uint64_t bytes) {
  away_ -= bytes;
  // Not by how much is away still: workers whose results come a little sooner would run ahead of the others.
  if (away_ == 0) busy_until_ = std::min(busy_until_, now);
}

void Pace::Forget() {
  const uint64_t away = away_;
  *this = Pace();
  away_ = away;
}

double Pace::pace() const { return kGain * std::max(agreed_, kLeast * rate_); }

bool Pace::InForce() const { return state() == State::kHold && round_ <= urgent_until_ && pace() <= kGain * kFastest; }

int64_t Pace::OpensAt() const {
  if (!InForce()) return INT64_MIN;
  return busy_until_ - std::max(kTimer, TimeOf(static_cast<double>(largest_), pace()));
}

}  // namespace byteps::credit
