// Behind silence: as fast as the link, and only there, only for a while, and only where the link is known.

#include "scheduler_plugins/credit/restart.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace byteps::credit {
namespace {

constexpr uint64_t kPart = 40 << 10;
constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr double kRate = 24e6;
constexpr uint32_t kPeers = 8;
constexpr uint32_t kSlow = 3;

// A worker behind a link of `rate`, on which results of all peers come home as parts are carried; those of the slow one
// as its own link carries them.
class Worker {
 public:
  explicit Worker(double rate) : rate_(rate) {}

  // Hands over so many parts as early as it may, and waits for all results. Returns the times at which they were handed
  // over, from the first on.
  std::vector<int64_t> Burst(uint64_t parts) {
    std::vector<int64_t> times;
    const int64_t begin = now_;
    most_idle_ = 0;
    while (parts > 0 || !home_.empty()) {
      const bool may = parts > 0 && home_.size() < most_away_;
      if (may && restart_.OpensAt() <= now_) {
        if (!times.empty()) most_idle_ = std::max(most_idle_, now_ - link_until_);
        const uint32_t peer = next_++ % kPeers;
        restart_.Started(now_, peer, kPart);
        times.push_back(now_ - begin);
        --parts;
        link_until_ = std::max(link_until_, now_) + static_cast<int64_t>(static_cast<double>(kPart) * 1e9 / rate_);
        int64_t home = link_until_;
        if (peer == kSlow && slow_rate_ > 0) {
          slow_until_ = std::max(slow_until_, link_until_) + static_cast<int64_t>(double{kPart} * 1e9 / slow_rate_);
          home = slow_until_;
        }
        home_.emplace(home, peer);
        continue;
      }
      now_ = std::min(may ? restart_.OpensAt() : INT64_MAX, home_.empty() ? INT64_MAX : home_.begin()->first);
      if (!home_.empty() && home_.begin()->first == now_) {
        const bool waits = most_away_ == SIZE_MAX ? waits_ : parts > 0;
        restart_.Home(now_, home_.begin()->second, kPart, waits ? INT64_MIN : INT64_MAX);
        home_.erase(home_.begin());
      }
    }
    return times;
  }

  void Rest(int64_t time) { now_ += time; }
  void SetRate(double rate) { rate_ = rate; }
  // Is there always more to go? (Not: what is under way is all.)
  void SetWaits(bool waits) { waits_ = waits; }
  // Within a credit of so many parts: what is left of a burst waits for it, and nothing else does.
  void SetCredit(size_t parts) { most_away_ = parts; }
  void SetSlowRate(double rate) { slow_rate_ = rate; }
  Restart* restart() { return &restart_; }
  // For how long the link stood still while something could have gone, at most.
  int64_t most_idle() const { return most_idle_; }

 private:
  double rate_;
  double slow_rate_ = 0;  // 0: no slow one
  uint32_t next_ = 0;
  bool waits_ = true;
  size_t most_away_ = SIZE_MAX;
  Restart restart_;
  int64_t now_ = kSecond;
  int64_t link_until_ = 0;
  int64_t most_idle_ = 0;
  int64_t slow_until_ = 0;
  std::multimap<int64_t, uint32_t> home_;  // peers by when their results are there
};

uint64_t Before(const std::vector<int64_t>& times, int64_t time) {
  return static_cast<uint64_t>(std::count_if(times.begin(), times.end(), [&](int64_t at) { return at < time; }));
}

// What a link of this rate carries until then, and `kTimer` ahead of it; a part may be under way in any case.
uint64_t Carried(double rate, int64_t time) {
  return static_cast<uint64_t>(rate * static_cast<double>(time + Restart::kTimer) / 1e9 / static_cast<double>(kPart)) +
         2;
}

TEST(RestartTest, NothingIsHeldBackOnALinkThatIsNotKnown) {
  Worker worker(kRate);
  EXPECT_EQ(Before(worker.Burst(80), 1), 80u);
  worker.Rest(kSecond);
  EXPECT_EQ(Before(worker.Burst(80), 1), 80u) << "a window is not full yet";
}

TEST(RestartTest, BehindSilenceAsFastAsTheLinkAndThenAtOnce) {
  Worker worker(kRate);
  worker.Burst(1000);
  EXPECT_NEAR(worker.restart()->rate(), kRate, 0.01 * kRate);
  for (int round = 0; round < 3; ++round) {
    worker.Rest(kSecond);
    const std::vector<int64_t> times = worker.Burst(1000);
    for (int64_t time = kMillisecond; time < Restart::kGently; time += kMillisecond) {
      EXPECT_LE(Before(times, time), Carried(Restart::kGain * kRate, time)) << time;
    }
    EXPECT_EQ(worker.most_idle(), 0) << "the link stood still";
    EXPECT_EQ(Before(times, Restart::kGently + 2 * kMillisecond), 1000u) << "held back for too long";
  }
}

// However large its tasks and however wrong the rate.
TEST(RestartTest, NothingIsHeldBackForLonger) {
  Worker worker(kRate / 100);
  worker.Burst(1000);
  worker.Rest(kSecond);
  ASSERT_GT(double{kPart} * 1e9 / worker.restart()->rate(), 2.0 * Restart::kGently);
  EXPECT_EQ(Before(worker.Burst(100), Restart::kGently + kMillisecond), 100u);
}

TEST(RestartTest, WithoutSilenceNothingIsHeldBack) {
  // All of a burst is handed over at once and takes 55 ms, so the silence is well below what counts.
  Worker worker(0.9 * Restart::kFastest);
  for (int burst = 0; burst < 20; ++burst) {
    EXPECT_EQ(Before(worker.Burst(300), 1), 300u);
    worker.Rest(Restart::kSilence / 2);
  }
  EXPECT_GT(worker.restart()->rate(), 0);
}

TEST(RestartTest, NorOnAFastLink) {
  Worker worker(1.2 * Restart::kFastest);
  worker.Burst(10'000);
  ASSERT_GT(worker.restart()->rate(), Restart::kFastest);
  worker.Rest(kSecond);
  EXPECT_EQ(Before(worker.Burst(1000), 1), 1000u);
}

TEST(RestartTest, PausesBetweenSmallTensorsAreNotTheLinks) {
  Worker worker(kRate);
  for (int round = 0; round < 20; ++round) {
    worker.Burst(50);
    worker.Rest(kSecond);
  }
  EXPECT_NEAR(worker.restart()->rate(), kRate, 0.05 * kRate);
}

TEST(RestartTest, WhatALinkIsNotFullOfSaysNothingOfIt) {
  Worker worker(kRate / 10);
  worker.SetWaits(false);
  worker.Burst(1000);
  EXPECT_EQ(worker.restart()->rate(), 0);
  worker.SetWaits(true);
  worker.Burst(1000);
  EXPECT_NEAR(worker.restart()->rate(), kRate / 10, 0.01 * kRate / 10);
}

TEST(RestartTest, AWaitForOthersIsForgottenForAFasterWindow) {
  Worker worker(kRate);
  worker.Burst(1000);
  worker.SetRate(kRate / 10);
  worker.Burst(2 * Restart::kWindow + kPeers);
  EXPECT_NEAR(worker.restart()->rate(), kRate, 0.01 * kRate);
  // A link that stays slow is a slow link.
  worker.Burst(Restart::kWindows * Restart::kWindow);
  EXPECT_NEAR(worker.restart()->rate(), kRate / 10, 0.01 * kRate);
}

// All wait for its results, so that those of a burst come home at its rate: that is not the link's.
TEST(RestartTest, ASlowPeerDoesNotMakeASlowLink) {
  Worker worker(kRate);
  worker.SetSlowRate(kRate / 10 / kPeers);
  for (int round = 0; round < 20; ++round) {
    worker.Burst(300);
    worker.Rest(kSecond);
  }
  EXPECT_GT(worker.restart()->rate(), 0.85 * kRate);
  EXPECT_LT(worker.restart()->rate(), 1.2 * kRate);
}

// The link was slow, and is not any more. Bursts that it carries within kGently are all that comes: nothing else tells.
TEST(RestartTest, ARateThatNothingConfirmsIsDoubted) {
  constexpr uint64_t kShort = 30;
  ASSERT_LT(kShort * double{kPart} * 1e9 / kRate, 0.9 * Restart::kGently);
  Worker worker(kRate);
  worker.Burst(1000);
  worker.SetRate(kRate / 10);
  worker.Burst((Restart::kWindows + 2) * Restart::kWindow);
  ASSERT_NEAR(worker.restart()->rate(), kRate / 10, 0.01 * kRate / 10);
  worker.SetRate(kRate);
  worker.SetCredit(16);
  int held = 0;
  for (int burst = 0; burst < 60; ++burst) {
    worker.Rest(kSecond);
    worker.Burst(kShort);
    held += worker.most_idle() > 0 ? 1 : 0;
  }
  EXPECT_GE(held, 1) << "the rate was not too low: nothing was tried";
  EXPECT_LE(held, 12) << "the link stood still";
  EXPECT_NEAR(worker.restart()->rate(), kRate, 0.05 * kRate);
}

// A silence with a full window since the one before it: the rate is as measured.
TEST(RestartTest, AWindowEndsTheDoubt) {
  Worker worker(kRate);
  worker.Burst(1000);
  for (int burst = 0; burst < 4; ++burst) {
    worker.Rest(kSecond);
    worker.Burst(10);
  }
  worker.Burst(1000);
  worker.Rest(kSecond);
  const std::vector<int64_t> times = worker.Burst(1000);
  for (int64_t time = kMillisecond; time < Restart::kGently; time += kMillisecond) {
    EXPECT_LE(Before(times, time), Carried(Restart::kGain * kRate, time)) << time;
  }
}

TEST(RestartTest, ATaskThatIsLostIsUnderWayNoMore) {
  Restart restart;
  restart.Started(1, 0, kPart);
  restart.Started(2, 0, kPart);
  restart.Home(kSecond, 0, kPart, 0);
  restart.Lost(0);
  // Idle since then: the time until the next result says nothing of the link.
  int64_t now = 100 * kSecond;
  const auto takes = static_cast<int64_t>(double{kPart} * 1e9 / kRate);
  for (uint64_t i = 0; i <= 3 * Restart::kWindow; ++i) restart.Started(now, 0, kPart);
  for (uint64_t i = 0; i <= 3 * Restart::kWindow; ++i) restart.Home(now += takes, 0, kPart, 0);
  EXPECT_NEAR(restart.rate(), kRate, 0.01 * kRate);
}

TEST(RestartTest, ForgetsWithTheOthers) {
  Worker worker(kRate);
  worker.Burst(1000);
  worker.restart()->Forget();
  EXPECT_EQ(worker.restart()->rate(), 0);
  worker.Rest(kSecond);
  EXPECT_EQ(Before(worker.Burst(100), 1), 100u);
}

}  // namespace
}  // namespace byteps::credit
