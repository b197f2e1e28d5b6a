#include "core/worker/timeline/record_ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"

namespace byteps {
namespace {

TimelineRecord Numbered(uint64_t number) { return {.number = number}; }

// On the heap: with -fsanitize=address g++ 12 aligns the stack to less than its 64 bytes.
std::unique_ptr<RecordRing> Ring(size_t size) { return std::make_unique<RecordRing>(size); }

TEST(RecordRingTest, GivesBackWhatItWasGivenInOrder) {
  const auto owned = Ring(4);
  RecordRing& ring = *owned;
  TimelineRecord record;
  EXPECT_FALSE(ring.Pop(&record));
  for (uint64_t round = 0; round < 10; ++round) {
    EXPECT_TRUE(ring.Push(Numbered(2 * round)));
    EXPECT_TRUE(ring.Push(Numbered(2 * round + 1)));
    for (uint64_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(ring.Pop(&record));
      EXPECT_EQ(record.number, 2 * round + i);
    }
    EXPECT_FALSE(ring.Pop(&record));
  }
}

TEST(RecordRingTest, RefusesWhatItHasNoRoomFor) {
  const auto owned = Ring(2);
  RecordRing& ring = *owned;
  EXPECT_TRUE(ring.Push(Numbered(0)));
  EXPECT_TRUE(ring.Push(Numbered(1)));
  EXPECT_FALSE(ring.Push(Numbered(2)));
  TimelineRecord record;
  ASSERT_TRUE(ring.Pop(&record));
  EXPECT_EQ(record.number, 0u);
  EXPECT_TRUE(ring.Push(Numbered(3)));
  ASSERT_TRUE(ring.Pop(&record));
  EXPECT_EQ(record.number, 1u);
  ASSERT_TRUE(ring.Pop(&record));
  EXPECT_EQ(record.number, 3u);
}

// Every record arrives once, and those of a thread in its order.
TEST(RecordRingTest, TakesFromSeveralThreadsAtOnce) {
  constexpr uint64_t kThreads = 4, kEach = 20'000;
  const auto owned = Ring(64);
  RecordRing& ring = *owned;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&ring, thread] {
      for (uint64_t i = 0; i < kEach; ++i) {
        while (!ring.Push({.operation = thread, .number = i})) std::this_thread::yield();
      }
    });
  }
  std::vector<uint64_t> next(kThreads, 0);
  TimelineRecord record;
  for (uint64_t taken = 0; taken < kThreads * kEach;) {
    ASSERT_TRUE(Eventually([&] { return ring.Pop(&record); }));
    ++taken;
    ASSERT_LT(record.operation, kThreads);
    ASSERT_EQ(record.number, next[record.operation]++);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(ring.Pop(&record));
}

}  // namespace
}  // namespace byteps
