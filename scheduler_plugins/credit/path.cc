#include "scheduler_plugins/credit/path.h"

#include <algorithm>
#include <utility>

namespace byteps::credit {
namespace {

// Of the credit over rate x delay. START must fill a path whose rate it does not know yet: 2 / ln 2, as BBR has it.
constexpr double kSteadyGain = 2.0;
constexpr double kStartGain = 2.89;
// START is over when the rate grows by less than a quarter for so many rounds.
constexpr double kGrowth = 1.25;
constexpr uint32_t kFullRounds = 3;
// So many times the largest task is long enough to see another like it.
constexpr uint64_t kGroup = 32;

}  // namespace

const char* PathStateName(Path::State state) {
  switch (state) {
    case Path::State::kStart:
      return "start";
    case Path::State::kSteady:
      return "steady";
    case Path::State::kProbe:
      return "probe";
  }
  return "unknown";
}

Path::Flight Path::Start(int64_t now, uint64_t bytes, bool others_wait) {
  if (bytes > 2 * largest_ && largest_ != 0) {
    // What was learned from smaller ones says nothing of these.
    delay_ = -1;
    rates_.clear();
    state_ = State::kStart;
    full_rate_ = 0;
    full_rounds_ = 0;
    credit_ = kInitialCredit;
  }
  largest_ = std::max(largest_, bytes);
  group_largest_ = std::max(group_largest_, bytes);
  group_bytes_ += bytes;
  if (group_bytes_ >= kGroup * largest_) {
    largest_ = std::exchange(group_largest_, 0);
    group_bytes_ = 0;
  }
  Flight flight;
  flight.alone = in_flight_ == 0;
  if (flight.alone) delivered_at_ = now;
  flight.bytes = bytes;
  flight.started = now;
  flight.delivered = delivered_;
  flight.delivered_at = delivered_at_;
  in_flight_ += bytes;
  flight.limited = !others_wait && in_flight_ < credit_;
  return flight;
}

void Path::Sent(int64_t now, const Flight& flight) {
  in_flight_ -= flight.bytes;
  delivered_ += flight.bytes;
  delivered_at_ = now;
  if (flight.bytes == 0 || flight.bytes < largest_ / 4) return;
  MeasureRate(now, flight);
  MeasureDelay(now, flight);
  Adjust(now);
}

void Path::MeasureRate(int64_t now, const Flight& flight) {
  if (flight.delivered >= round_ends_) {
    ++round_;
    round_ends_ = delivered_;
    if (state_ == State::kStart && !rates_.empty() && !flight.limited) {
      if (rate() >= kGrowth * full_rate_) {
        full_rate_ = rate();
        full_rounds_ = 0;
      } else {
        ++full_rounds_;
      }
    }
  }
  // A path that takes bytes in no time has told nothing.
  const int64_t interval = now - flight.delivered_at;
  if (interval <= 0) return;
  const double sample = static_cast<double>(delivered_ - flight.delivered) * 1e9 / static_cast<double>(interval);
  if (flight.limited && sample < rate()) return;
  while (!rates_.empty() && rates_.back().rate <= sample) rates_.pop_back();
  // What is smaller than another of its round goes with it, and was never the largest.
  if (rates_.empty() || rates_.back().round != round_) rates_.push_back({round_, sample});
  const auto young = [this](const Sample& seen) { return seen.round + kRateWindow >= round_; };
  rates_.erase(rates_.begin(), std::find_if(rates_.begin(), rates_.end(), young));
}

void Path::MeasureDelay(int64_t now, const Flight& flight) {
  const int64_t sample = now - flight.started;
  const bool probed = state_ == State::kProbe && flight.alone;
  if (delay_ < 0 || sample <= delay_ || probed) {
    delay_ = sample;
    delay_seen_ = now;
    if (probed) state_ = State::kSteady;
  }
}

void Path::Adjust(int64_t now) {
  if (state_ == State::kStart && full_rounds_ >= kFullRounds) state_ = State::kSteady;
  if (state_ == State::kSteady && now - delay_seen_ > kDelayWindow) state_ = State::kProbe;
  const double product = rate() * static_cast<double>(std::max<int64_t>(delay_, 0)) / 1e9;
  // More than any path holds; keeps sums of credits from overflowing.
  constexpr double kMost = 1e15;
  switch (state_) {
    case State::kStart:
      credit_ = std::max(kInitialCredit, static_cast<uint64_t>(std::min(kStartGain * product, kMost)));
      break;
    case State::kSteady:
      // A task at a time measures a product of one task, twice which must admit two.
      credit_ = std::max(
          {largest_, kLeastCredit, static_cast<uint64_t>(std::min(kSteadyGain * product, kMost)) + largest_ / 8});
      break;
    case State::kProbe:
      credit_ = 0;  // one task always may
      break;
  }
}

}  // namespace byteps::credit
