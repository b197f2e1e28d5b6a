#include "server/reducer/part_table.h"

#include "gtest/gtest.h"

namespace byteps {
namespace {

TEST(PartTableTest, ForgetsWhatWasIdleLongestAndNothingBusy) {
  PartTable parts(3);
  Part* busy = parts.FindOrMake(1, 0);
  for (uint64_t name = 2; name <= 5; ++name) parts.SetIdle(parts.FindOrMake(name, 0));
  EXPECT_EQ(parts.Find(2, 0), nullptr);
  EXPECT_NE(parts.Find(3, 0), nullptr);
  EXPECT_EQ(parts.Find(1, 0), busy);
  EXPECT_EQ(parts.size(), 4u);

  // Used again, it is the youngest; busy, it is not in the queue.
  parts.SetBusy(parts.Find(3, 0));
  parts.SetIdle(parts.Find(3, 0));
  parts.SetBusy(parts.Find(4, 0));
  parts.SetIdle(parts.FindOrMake(6, 0));
  parts.SetIdle(parts.FindOrMake(7, 0));
  EXPECT_EQ(parts.Find(5, 0), nullptr);
  EXPECT_NE(parts.Find(3, 0), nullptr);
  EXPECT_NE(parts.Find(4, 0), nullptr);
}

TEST(PartTableTest, PartsOfOneNameAreApart) {
  PartTable parts(100);
  Part* first = parts.FindOrMake(1, 0);
  Part* second = parts.FindOrMake(1, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(parts.FindOrMake(1, 1), second);
  EXPECT_EQ(second->number, 1u);
  EXPECT_EQ(parts.Find(2, 1), nullptr);
}

TEST(PartTableTest, IdleTwiceCountsOnce) {
  PartTable parts(2);
  Part* part = parts.FindOrMake(1, 0);
  for (int i = 0; i < 10; ++i) parts.SetIdle(part);
  parts.SetIdle(parts.FindOrMake(2, 0));
  EXPECT_NE(parts.Find(1, 0), nullptr);
}

}  // namespace
}  // namespace byteps
