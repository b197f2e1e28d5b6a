#include "scheduler_plugins/common/slot_table.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace byteps::scheduling {
namespace {

struct Slot {
  uint64_t id = 0;
};
using Table = SlotTable<Slot>;

TEST(SlotTableTest, SlotsStayWhereTheyAreAndAreNeverShared) {
  std::mt19937_64 random(1);
  Table table;
  std::map<uint64_t, const Slot*> expected;
  uint64_t next = UINT64_MAX - 5000;  // the last ones wrap around
  for (uint32_t step = 0; step < 40000; ++step) {
    if (expected.empty() || random() % 2 == 0) {
      const uint64_t id = next++;
      const uint32_t index = table.Add(id);
      table[index].id = id;
      ASSERT_TRUE(expected.emplace(id, &table[index]).second);
    } else {
      auto victim = expected.lower_bound(UINT64_MAX - 5000 + random() % 25000);
      if (victim == expected.end()) victim = expected.begin();
      ASSERT_EQ(table[table.Find(victim->first)].id, victim->first);
      table.Free(victim->first);
      ASSERT_EQ(table.Find(victim->first), Table::kNone);
      expected.erase(victim);
    }
    ASSERT_EQ(table.size(), expected.size());
  }
  for (const auto& [id, slot] : expected) {
    ASSERT_EQ(&table[table.Find(id)], slot);
    ASSERT_EQ(slot->id, id);
  }
}

TEST(SlotTableTest, MemoryIsUsedAgain) {
  Table table;
  std::set<const Slot*> seen;
  for (uint64_t round = 0; round < 100; ++round) {
    for (uint64_t id = 1000 * round; id < 1000 * (round + 1); ++id) seen.insert(&table[table.Add(id)]);
    for (uint64_t id = 1000 * round; id < 1000 * (round + 1); ++id) table.Free(id);
  }
  EXPECT_LE(seen.size(), 1000u + 2 * Table::kBlock);
}

}  // namespace
}  // namespace byteps::scheduling
