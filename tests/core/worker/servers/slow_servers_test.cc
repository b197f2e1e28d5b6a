#include "core/worker/servers/slow_servers.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

namespace byteps {
namespace {

// One window: partitions of each server, all of which take so long.
std::optional<SlowServers::Finding> Window(SlowServers* slow, Time* now, const std::vector<Time>& took,
                                           int partitions = 10) {
  EXPECT_FALSE(slow->Check(*now).has_value());
  for (uint32_t server = 0; server < took.size(); ++server) {
    for (int i = 0; i < partitions; ++i) slow->Add(server, took[server]);
  }
  *now += SlowServers::kWindow;
  return slow->Check(*now);
}

constexpr Time kMs = kMillisecond;

// What the last of as many windows as it takes says; the ones before say nothing.
std::optional<SlowServers::Finding> Windows(SlowServers* slow, Time* now, const std::vector<Time>& took,
                                            int partitions = 10) {
  for (int window = 1; window < SlowServers::kWindows; ++window) {
    EXPECT_FALSE(Window(slow, now, took, partitions).has_value());
  }
  return Window(slow, now, took, partitions);
}

TEST(SlowServersTest, NamesTheOneThatTakesSeveralTimesAsLong) {
  SlowServers slow;
  Time now = kSecond;
  const std::optional<SlowServers::Finding> finding =
      Windows(&slow, &now, {100 * kMs, 90 * kMs, 110 * kMs, 900 * kMs, 100 * kMs});
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->server, 3u);
  EXPECT_EQ(finding->mean, 900 * kMs);
  EXPECT_EQ(finding->others, 100 * kMs);
}

TEST(SlowServersTest, NamesNoMemberWhereAllAreAlikeOrItDoesNotMatter) {
  for (const std::vector<Time>& took : std::vector<std::vector<Time>>{
           {},
           {900 * kMs},                        // no member to compare with
           {900 * kMs, 900 * kMs, 900 * kMs},  // a slow worker
           {100 * kMs, 190 * kMs, 100 * kMs},  // not slow enough
           {100 * kMs, 290 * kMs, 100 * kMs},  // nor for so short a time
           {kMs / 10, 10 * kMs, kMs / 10},     // milliseconds
       }) {
    SlowServers slow;
    Time now = 0;
    EXPECT_FALSE(Windows(&slow, &now, took).has_value());
  }
}

TEST(SlowServersTest, AMemberThatTakesTwiceAsLongIsNamedLater) {
  SlowServers slow;
  Time now = 0;
  const std::vector<Time> took = {100 * kMs, 250 * kMs, 100 * kMs};
  int windows = 1;
  while (!Window(&slow, &now, took).has_value() && windows < 100) ++windows;
  EXPECT_EQ(windows, 2 * SlowServers::kWindows);
}

TEST(SlowServersTest, WaitsUntilThereAreEnoughPartitions) {
  SlowServers slow;
  Time now = 0;
  const std::vector<Time> took = {10 * kMs, 900 * kMs};
  // Two a window, and it takes four: every other window counts.
  int windows = 1;
  while (!Window(&slow, &now, took, 2).has_value() && windows < 100) ++windows;
  EXPECT_EQ(windows, 2 * SlowServers::kWindows);
}

TEST(SlowServersTest, AMemberThatIsLastByChanceIsNotNamed) {
  SlowServers slow;
  Time now = 0;
  for (int window = 0; window < 30; ++window) {
    std::vector<Time> took(4, 100 * kMs);
    took[static_cast<size_t>(window) % 4] = 900 * kMs;
    EXPECT_FALSE(Window(&slow, &now, took).has_value());
  }
}

// An hour of a job in which nothing is wrong. Some partitions take ten times as long as others, and one server of eight
// is always somewhat behind.
TEST(SlowServersTest, NoMemberIsNamedInAnHourOfAHealthyJob) {
  constexpr int kHour = static_cast<int>(3600 * kSecond / SlowServers::kWindow);
  for (const int partitions : {4, 20, 200}) {
    SlowServers slow;
    std::mt19937 random(static_cast<unsigned>(partitions));
    Time now = 0;
    for (int window = 0; window < kHour; ++window) {
      EXPECT_FALSE(slow.Check(now).has_value());
      for (uint32_t server = 0; server < 8; ++server) {
        for (int i = 0; i < partitions; ++i) {
          const Time took = 20 * kMs + static_cast<Time>(random() % 180) * kMs;
          slow.Add(server, server == 3 ? took * 13 / 10 : took);
        }
      }
      now += SlowServers::kWindow;
      ASSERT_FALSE(slow.Check(now).has_value()) << partitions << " partitions, window " << window;
    }
  }
}

// The same one in each window of an hour, and never by enough.
TEST(SlowServersTest, AMemberThatTakesHalfAsLongAgainIsNotNamed) {
  for (const Time took : {110 * kMs, 150 * kMs, 199 * kMs}) {
    SlowServers slow;
    Time now = 0;
    for (int window = 0; window < 720; ++window) {
      ASSERT_FALSE(Window(&slow, &now, {100 * kMs, 100 * kMs, took, 100 * kMs}).has_value()) << took << " " << window;
    }
  }
}

// Twice as long in one window, by chance, is forgotten in the next one that is as it should be.
TEST(SlowServersTest, WhatWasForAWhileIsForgotten) {
  SlowServers slow;
  Time now = 0;
  for (int window = 0; window < 720; ++window) {
    const bool well = window % (2 * SlowServers::kWindows) == 0;
    EXPECT_FALSE(Window(&slow, &now, {100 * kMs, 100 * kMs, (well ? 150 : 250) * kMs, 100 * kMs}).has_value());
  }
}

TEST(SlowServersTest, TheSameOneIsNamedOnceAMinute) {
  SlowServers slow;
  Time now = 0;
  const std::vector<Time> took = {10 * kMs, 10 * kMs, 900 * kMs};
  int named = 0;
  for (int window = 0; window < 27; ++window) named += Window(&slow, &now, took).has_value() ? 1 : 0;
  EXPECT_EQ(named, 3);  // after 15, 75 and 135 s
  const std::optional<SlowServers::Finding> another = Windows(&slow, &now, {900 * kMs, 10 * kMs, 10 * kMs});
  ASSERT_TRUE(another.has_value());
  EXPECT_EQ(another->server, 0u);
}

}  // namespace
}  // namespace byteps
