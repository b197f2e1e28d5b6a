#include "scheduler_plugins/common/urgency_heap.h"

#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace byteps::scheduling {
namespace {

using Entry = UrgencyHeap::Entry;

TEST(UrgencyHeapTest, OneFieldAfterTheOther) {
  const Entry entry = {1, 1, 1, 1, 0};
  EXPECT_TRUE(entry < (Entry{2, 9, 9, 9, 0}));
  EXPECT_TRUE(entry < (Entry{1, 0, 9, 9, 0}));
  EXPECT_TRUE(entry < (Entry{1, 1, 9, 0, 0}));
  EXPECT_TRUE(entry < (Entry{1, 1, 0, 1, 0}));
  EXPECT_FALSE(entry < (Entry{1, 1, 1, 1, 9}));
  EXPECT_TRUE((Entry{INT64_MIN, 0, 0, 0, 0}) < entry);
}

TEST(UrgencyHeapTest, RandomHistories) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto later = [](const Entry& a, const Entry& b) { return b < a; };
    std::set<Entry, decltype(later)> expected(later);
    std::set<uint64_t> gone;
    const auto stale = [&](const Entry& entry) { return gone.contains(entry.number); };
    UrgencyHeap heap;
    for (uint64_t number = 1; number < 3000; ++number) {
      const Entry entry = {static_cast<int64_t>(random() % 3) - 1, random() % 3, number,
                           static_cast<uint32_t>(random() % 20), 7};
      heap.Push(entry);
      expected.insert(entry);
      if (random() % 3 == 0) {  // one that is anywhere
        const auto victim = std::next(expected.begin(), random() % expected.size());
        gone.insert(victim->number);
        expected.erase(victim);
        heap.NoteStale(stale);
      }
      const Entry* top = heap.Top(stale);
      ASSERT_EQ(top == nullptr, expected.empty());
      if (top == nullptr) continue;
      ASSERT_EQ(top->number, expected.begin()->number);
      if (random() % 3 == 0) {
        heap.Pop();
        expected.erase(expected.begin());
      }
    }
    for (; !expected.empty(); expected.erase(expected.begin())) {
      ASSERT_EQ(heap.Top(stale)->number, expected.begin()->number);
      heap.Pop();
    }
    EXPECT_EQ(heap.Top(stale), nullptr);
  }
}

}  // namespace
}  // namespace byteps::scheduling
