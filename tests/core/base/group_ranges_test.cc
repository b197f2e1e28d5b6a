#include "core/base/group_ranges.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace byteps {
namespace {

std::string Ranges(const std::vector<uint32_t>& sizes, size_t most = 16) { return GroupRanges(sizes, most); }

TEST(GroupRanges, AreRanks) {
  EXPECT_EQ(Ranges({}), "");
  EXPECT_EQ(Ranges({1}), "0");
  EXPECT_EQ(Ranges({4}), "0-3");
  EXPECT_EQ(Ranges({4, 4, 1, 2}), "0-3, 4-7, 8, 9-10");
}

TEST(GroupRanges, LongListsAreCut) {
  EXPECT_EQ(Ranges({1, 1, 1, 1, 1}, 5), "0, 1, 2, 3, 4");
  EXPECT_EQ(Ranges({1, 1, 1, 1, 1}, 2), "0, 1 and 3 more");
}

}  // namespace
}  // namespace byteps
