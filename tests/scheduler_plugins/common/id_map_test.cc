#include "scheduler_plugins/common/id_map.h"

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace byteps::scheduling {
namespace {

TEST(IdMapTest, AnEmptyOneHasNothing) {
  IdMap map;
  EXPECT_EQ(map.Find(0), IdMap::kNone);
  EXPECT_EQ(map.Erase(UINT64_MAX), IdMap::kNone);
  EXPECT_EQ(map.size(), 0u);
}

// Ids that are counted up, ids with the same low bits, ids at the limits: after each step it is as a std::map would be.
TEST(IdMapTest, RandomHistories) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const uint64_t stride = uint64_t{1} << (seed % 3 == 0 ? 0 : seed % 3 == 1 ? 20 : 58);
    const uint64_t base = seed % 2 == 0 ? 0 : UINT64_MAX - 100;
    const uint64_t ids = seed % 5 == 0 ? 5000 : 50;
    IdMap map;
    std::map<uint64_t, uint32_t> expected;
    for (uint32_t step = 0; step < 20000; ++step) {
      const uint64_t id = base + random() % ids * stride;
      const auto found = expected.find(id);
      ASSERT_EQ(map.Find(id), found == expected.end() ? IdMap::kNone : found->second);
      if (found == expected.end()) {
        map.Insert(id, step);
        expected.emplace(id, step);
      } else if (random() % 2 == 0) {
        ASSERT_EQ(map.Erase(id), found->second);
        expected.erase(found);
      }
      ASSERT_EQ(map.size(), expected.size());
    }
    for (const auto& [id, index] : expected) ASSERT_EQ(map.Find(id), index);
    for (const auto& [id, index] : expected) ASSERT_EQ(map.Erase(id), index);
    EXPECT_EQ(map.size(), 0u);
  }
}

}  // namespace
}  // namespace byteps::scheduling
