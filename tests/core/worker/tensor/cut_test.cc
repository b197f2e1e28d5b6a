#include "core/worker/tensor/cut.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace byteps {
namespace {

control::Assignment Assigned(uint64_t part_elements, std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> runs) {
  control::Assignment assignment;
  assignment.set_key(7 << 16 | 1);
  assignment.set_part_elements(part_elements);
  for (auto [parts, server, lane] : runs) {
    control::Assignment::Run* run = assignment.add_runs();
    run->set_parts(parts);
    run->set_server(server);
    run->set_lane(lane);
  }
  return assignment;
}

TEST(CutTest, CoversTheTensorExactly) {
  absl::StatusOr<Cut> cut = Cut::Make(Assigned(4, {{2, 0, 1}, {1, 2, 3}}), 10);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->parts(), 3u);
  EXPECT_EQ(cut->place(1), (Place{0, 1}));
  EXPECT_EQ(cut->place(2), (Place{2, 3}));
  EXPECT_EQ(cut->first(2), 8u);
  EXPECT_EQ(cut->count(1), 4u);
  EXPECT_EQ(cut->count(2), 2u);
  EXPECT_EQ(PeerOf(cut->place(2)), 1u + 2 * 64 + 3);
}

TEST(CutTest, ATensorOfNothingHasOnePart) {
  absl::StatusOr<Cut> cut = Cut::Make(Assigned(4, {{1, 0, 0}}), 0);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->parts(), 1u);
  EXPECT_EQ(cut->count(0), 0u);
}

TEST(CutTest, RefusesWhatDoesNotAddUp) {
  EXPECT_FALSE(Cut::Make(Assigned(0, {{1, 0, 0}}), 10).ok());
  EXPECT_FALSE(Cut::Make(Assigned(4, {{2, 0, 0}}), 10).ok()) << "a part without a place";
  EXPECT_FALSE(Cut::Make(Assigned(4, {{4, 0, 0}}), 10).ok()) << "more places than parts";
  EXPECT_FALSE(Cut::Make(Assigned(4, {{0xffffffff, 0, 0}, {4, 0, 0}}), 10).ok()) << "overflow";
  EXPECT_FALSE(Cut::Make(Assigned(4, {{3, 0, 64}}), 10).ok()) << "no such lane";
  EXPECT_FALSE(Cut::Make(Assigned(1, {{1, 0, 0}}), uint64_t{1} << 40).ok()) << "too many parts";
}

}  // namespace
}  // namespace byteps
