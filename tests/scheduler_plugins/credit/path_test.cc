#include "scheduler_plugins/credit/path.h"

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

#include "gtest/gtest.h"

namespace byteps::credit {
namespace {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kMillisecond = 1000 * kMicrosecond;
constexpr int64_t kSecond = 1000 * kMillisecond;

// A link that carries `rate` bytes per second, and tells `delay` after each byte that it has come.
struct Link {
  double rate;
  int64_t delay;
  int64_t free_at = 0;
  std::deque<std::pair<int64_t, Path::Flight>> under_way;  // when it is told

  void Take(int64_t now, const Path::Flight& flight) {
    free_at = std::max(free_at, now) + static_cast<int64_t>(static_cast<double>(flight.bytes) / rate * 1e9);
    under_way.emplace_back(free_at + delay, flight);
  }
};

// Sends tasks of `bytes` for so long, always as many as there is credit for. Returns the bytes that have arrived.
uint64_t Saturate(Path* path, Link* link, int64_t* now, int64_t span, uint64_t bytes, uint64_t* most = nullptr) {
  const int64_t end = *now + span;
  uint64_t arrived = 0;
  while (true) {
    while (path->Admits(bytes)) link->Take(*now, path->Start(*now, bytes, true));
    if (most != nullptr) *most = std::max(*most, path->in_flight());
    const auto [at, flight] = link->under_way.front();
    if (at > end) break;
    link->under_way.pop_front();
    *now = at;
    path->Sent(at, flight);
    arrived += flight.bytes;
  }
  return arrived;
}

void Finish(Path* path, Link* link, int64_t* now) {
  for (const auto& [at, flight] : link->under_way) {
    *now = std::max(*now, at);
    path->Sent(at, flight);
  }
  link->under_way.clear();
}

TEST(PathTest, BeginsWithAMegabyte) {
  const Path path;
  EXPECT_EQ(path.state(), Path::State::kStart);
  EXPECT_EQ(path.credit(), 1u << 20);
}

// From a megabit to a hundred gigabits, from microseconds to a tenth of a second: the link is busy, and what is on its
// way is not much more than it needs.
TEST(PathTest, FillsThePathAndNotMuchMore) {
  for (const double rate : {125e3, 25e6, 125e6, 1.25e9, 12.5e9}) {
    for (const int64_t delay : {5 * kMicrosecond, 100 * kMicrosecond, 10 * kMillisecond, 100 * kMillisecond}) {
      for (const uint64_t bytes : {uint64_t{64} << 10, uint64_t{512} << 10}) {
        SCOPED_TRACE(testing::Message() << rate << " B/s, " << delay << " ns, tasks of " << bytes);
        Path path;
        Link link{rate, delay};
        int64_t now = 0;
        const auto serial = static_cast<int64_t>(static_cast<double>(bytes) / rate * 1e9);
        Saturate(&path, &link, &now,
                 100 * (delay + serial) + static_cast<int64_t>(8 * Path::kInitialCredit / rate * 1e9), bytes);
        Finish(&path, &link, &now);
        const int64_t span = 50 * (delay + serial);
        uint64_t most = 0;
        const uint64_t arrived = Saturate(&path, &link, &now, span, bytes, &most);
        const double held = rate * static_cast<double>(delay) / 1e9 + static_cast<double>(bytes);
        EXPECT_GE(static_cast<double>(arrived), 0.96 * rate * static_cast<double>(span - delay) / 1e9 - bytes);
        EXPECT_LE(static_cast<double>(most), 2.1 * held + static_cast<double>(bytes)) << PathStateName(path.state());
      }
    }
  }
}

// A kernel that takes bytes at once until its buffer is full, and then at the rate of the link.
TEST(PathTest, WhereTheKernelHoldsTheQueueATaskAtATimeIsEnough) {
  Path path;
  constexpr uint64_t kTask = 128 << 10;
  constexpr double kRate = 25e6;
  constexpr double kBuffer = 512 << 10;
  int64_t now = 0;
  double buffered = 0;
  for (int i = 0; i < 2000; ++i) {
    if (i % 100 == 0) {
      buffered = 0;  // a pause
      now += kSecond;
    }
    const Path::Flight flight = path.Start(now, kTask, true);
    const double wait = std::max(0.0, buffered + kTask - kBuffer) / kRate * 1e9;
    const int64_t took = 20 * kMicrosecond + static_cast<int64_t>(wait);
    buffered = std::max(0.0, buffered - kRate * static_cast<double>(took) / 1e9) + kTask;
    now += took;
    path.Sent(now, flight);
  }
  EXPECT_EQ(path.state(), Path::State::kSteady);
  EXPECT_LE(path.credit(), 3 * kTask);
}

// Tasks that go one at a time cannot share a message: each would have one for itself, though the link is as busy with
// one.
TEST(PathTest, OfSmallTasksAMessageOfThemAtLeast) {
  for (const uint64_t bytes : {uint64_t{100}, uint64_t{4} << 10, uint64_t{16} << 10}) {
    Path path;
    Link link{25e6, kMicrosecond};
    int64_t now = 0;
    Saturate(&path, &link, &now, kSecond, bytes);
    ASSERT_EQ(path.state(), Path::State::kSteady);
    uint64_t most = 0;
    Saturate(&path, &link, &now, kSecond, bytes, &most);
    EXPECT_LE(most, Path::kLeastCredit);
    EXPECT_GT(most + bytes, Path::kLeastCredit);
  }
}

TEST(PathTest, FollowsAPathThatBecomesFasterOrSlower) {
  constexpr uint64_t kTask = 256 << 10;
  Path path;
  Link link{25e6, kMillisecond};
  int64_t now = 0;
  Saturate(&path, &link, &now, 5 * kSecond, kTask);
  EXPECT_NEAR(path.rate(), 25e6, 1e6);
  link.rate = 500e6;
  Saturate(&path, &link, &now, 5 * kSecond, kTask);
  EXPECT_NEAR(path.rate(), 500e6, 20e6);
  link.rate = 25e6;
  Saturate(&path, &link, &now, 5 * kSecond, kTask);
  EXPECT_LE(path.rate(), 26e6);
  // A slower link is a longer way for a task, too: that is seen at the next probe.
  Saturate(&path, &link, &now, Path::kDelayWindow, kTask);
  EXPECT_NEAR(path.rate(), 25e6, 1e6);
}

// Tensors are cut again, into smaller tasks: what is on its way shrinks with them.
TEST(PathTest, SmallerTasksGetASmallerCredit) {
  Path path;
  Link link{25e6, 10 * kMicrosecond};
  int64_t now = 0;
  Saturate(&path, &link, &now, 5 * kSecond, 512 << 10);
  EXPECT_GE(path.credit(), uint64_t{512} << 10);
  Saturate(&path, &link, &now, 12 * kSecond, 64 << 10);
  EXPECT_LE(path.credit(), 3 * (uint64_t{64} << 10));
  EXPECT_NEAR(path.rate(), 25e6, 1e6);
}

// The delay grew (another route): noticed when it has not been seen for ten seconds, by one task that goes alone.
TEST(PathTest, ProbesTheDelayNowAndThen) {
  constexpr uint64_t kTask = 256 << 10;
  Path path;
  Link link{125e6, kMillisecond};
  int64_t now = 0;
  Saturate(&path, &link, &now, 5 * kSecond, kTask);
  const int64_t before = path.delay();
  link.delay = 20 * kMillisecond;
  bool probed = false;
  for (int i = 0; i < 300; ++i) {
    Saturate(&path, &link, &now, kSecond / 10, kTask);
    probed |= path.state() == Path::State::kProbe;
  }
  EXPECT_GE(path.delay(), before + 18 * kMillisecond);
  EXPECT_TRUE(probed);
  EXPECT_EQ(path.state(), Path::State::kSteady);
}

// Whatever happens: one task may always go when nothing is on its way, and what is admitted is within the credit.
TEST(PathTest, RandomLives) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Path path;
    std::deque<Path::Flight> under_way;
    uint64_t in_flight = 0;
    int64_t now = 0;
    for (int step = 0; step < 2000; ++step) {
      now += static_cast<int64_t>(random() % (uint64_t{1} << (random() % 34)));
      const uint64_t bytes = random() % 8 == 0 ? 0 : random() % (uint64_t{1} << (random() % 24));
      if (path.Admits(bytes)) {
        if (in_flight != 0 && bytes != 0) {
          ASSERT_LE(in_flight + bytes, path.credit());
        }
        under_way.push_back(path.Start(now, bytes, random() % 2 == 0));
        in_flight += bytes;
      } else {
        ASSERT_FALSE(under_way.empty()) << "held back by nothing";
      }
      if (!under_way.empty() && random() % 2 == 0) {
        in_flight -= under_way.front().bytes;
        random() % 10 == 0 ? path.Lost(under_way.front()) : path.Sent(now, under_way.front());
        under_way.pop_front();
      }
      ASSERT_EQ(path.in_flight(), in_flight);
    }
  }
}

}  // namespace
}  // namespace byteps::credit
