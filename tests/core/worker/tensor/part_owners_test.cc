#include "core/worker/tensor/part_owners.h"

#include <gtest/gtest.h>

#include <vector>

namespace byteps {
namespace {

TEST(PartOwners, EveryPartHasOneOwnerAndNoneHasMuchMore) {
  for (size_t members : {2, 3, 5, 8, 64}) {
    for (uint32_t parts : {1u, 2u, 3u, 7u, 8u, 9u, 100u, 16'000'000u}) {
      for (uint64_t name : {0u, 1u, 6u, 1000u}) {
        uint64_t sum = 0;
        std::vector<int> owners(parts <= 100 ? parts : 0);
        for (size_t index = 0; index < members; ++index) {
          const PartRange range = PartsOf(parts, name, index, members);
          ASSERT_LE(range.first, range.last);
          ASSERT_LE(range.last, parts);
          EXPECT_LE(range.size(), parts / members + 1);
          sum += range.size();
          for (uint32_t part = range.first; part < range.last && part < owners.size(); ++part) ++owners[part];
        }
        EXPECT_EQ(sum, parts);
        for (const int count : owners) EXPECT_EQ(count, 1);
        EXPECT_EQ(PartsOf(parts, name, LeaderOf(name, members), members).first, 0u) << "the leader has the first";
      }
    }
  }
}

TEST(PartOwners, SlicesCoverATensorAndShareNoCacheLine) {
  for (size_t members : {1, 2, 3, 7}) {
    for (uint64_t bytes :
         {uint64_t{0}, uint64_t{1}, uint64_t{64}, uint64_t{1000}, uint64_t{1} << 40, (uint64_t{1} << 50) + 7}) {
      uint64_t at = 0;
      for (size_t index = 0; index < members; ++index) {
        const Slice slice = SliceOf(bytes, index, members);
        EXPECT_EQ(slice.first, at);
        EXPECT_GE(slice.last, slice.first);
        if (slice.last != bytes) {
          EXPECT_EQ(slice.last % 64, 0u);
        }
        at = slice.last;
      }
      EXPECT_EQ(at, bytes);
    }
  }
}

TEST(PartOwners, TensorsOfOnePartAreSpreadOverAll) {
  std::vector<int> owned(3);
  for (uint64_t name = 0; name < 300; ++name) {
    for (size_t index = 0; index < 3; ++index) owned[index] += static_cast<int>(PartsOf(1, name, index, 3).size());
  }
  EXPECT_EQ(owned, std::vector<int>(3, 100));
}

}  // namespace
}  // namespace byteps
