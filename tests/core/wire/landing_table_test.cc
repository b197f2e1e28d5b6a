#include "core/wire/landing_table.h"

#include <gtest/gtest.h>

#include <set>

#include "core/wire/wire.h"

namespace byteps {
namespace {

TEST(LandingTable, JoinsRecordAndBytesInEitherOrder) {
  LandingTable table;
  const uint32_t first = *table.Take();
  EXPECT_FALSE(table.Announce(first, 7));
  EXPECT_EQ(table.Land(first), 7u);

  const uint32_t second = *table.Take();
  EXPECT_EQ(table.Land(second), std::nullopt);
  EXPECT_TRUE(table.Announce(second, 8));
}

TEST(LandingTable, AnEarlierGenerationIsStale) {
  LandingTable table;
  const uint32_t old = *table.Take();
  const uint32_t next = table.Renew(old);
  EXPECT_EQ(wire::ImmediateSlot(old), wire::ImmediateSlot(next));
  EXPECT_FALSE(table.Valid(old));
  EXPECT_EQ(table.Land(old), std::nullopt);
  EXPECT_EQ(table.stale(), 1u);
  // The stale landing left no trace in the new generation.
  EXPECT_FALSE(table.Announce(next, 1));
}

TEST(LandingTable, TheSameBytesLandOnce) {
  LandingTable table;
  const uint32_t immediate = *table.Take();
  table.Announce(immediate, 3);
  EXPECT_EQ(table.Land(immediate), 3u);
  EXPECT_EQ(table.Land(immediate), std::nullopt);
  EXPECT_EQ(table.stale(), 1u);
}

TEST(LandingTable, NeverLendsASlotTwice) {
  LandingTable table;
  std::set<uint32_t> slots;
  for (uint32_t i = 0; i < LandingTable::kCapacity; ++i) {
    auto immediate = table.Take();
    ASSERT_TRUE(immediate);
    ASSERT_TRUE(slots.insert(wire::ImmediateSlot(*immediate)).second);
  }
  EXPECT_FALSE(table.Take());
  table.Free(wire::Immediate(5, 0));
  auto again = table.Take();
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, wire::Immediate(5, 1));
}

TEST(LandingTable, RangesAreConsecutiveStartAtGenerationZeroAndDoNotOverlapSingles) {
  LandingTable table;
  const uint32_t single = *table.Take();
  const uint32_t range = *table.TakeRange(4);
  EXPECT_GT(range, wire::ImmediateSlot(single));
  table.Renew(wire::Immediate(range + 1, 0));
  table.FreeRange(range, 4);
  // Freed slots serve singles and ranges alike, never both.
  const uint32_t other = *table.Take();
  const uint32_t next = *table.TakeRange(6);
  EXPECT_TRUE(wire::ImmediateSlot(other) < next || wire::ImmediateSlot(other) >= next + 6);
  for (uint32_t i = 0; i < 6; ++i) EXPECT_TRUE(table.Valid(wire::Immediate(next + i, 0)));
  EXPECT_FALSE(table.TakeRange(LandingTable::kCapacity));
}

TEST(LandingTable, GenerationsWrapWithinTheirBits) {
  LandingTable table;
  uint32_t immediate = *table.Take();
  for (int i = 0; i < (1 << wire::kGenerationBits) + 3; ++i) {
    immediate = table.Renew(immediate);
    ASSERT_LT(immediate, 1u << 24);
    ASSERT_TRUE(table.Valid(immediate));
  }
  EXPECT_EQ(wire::ImmediateGeneration(immediate), 3u);
}

}  // namespace
}  // namespace byteps
