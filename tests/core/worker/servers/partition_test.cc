#include "core/worker/servers/partition.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace byteps {
namespace {

TEST(PartitionTest, TheWayHome) {
  Partition partition;
  for (PartitionState state :
       {PartitionState::kQueued, PartitionState::kHeld, PartitionState::kPosted, PartitionState::kPushed,
        PartitionState::kQueued, PartitionState::kPosted, PartitionState::kHome}) {
    partition.Move(state);
    EXPECT_EQ(partition.state(), state);
  }
  EXPECT_THROW(partition.Move(PartitionState::kFailed), std::logic_error);
  EXPECT_THROW(partition.Move(PartitionState::kQueued), std::logic_error);
}

TEST(PartitionTest, EveryArrow) {
  using S = PartitionState;
  const std::vector<S> all = {S::kIdle, S::kQueued, S::kHeld, S::kPosted, S::kPushed, S::kHome, S::kFailed};
  const std::vector<std::vector<int>> may = {
      // to:   idle queued held posted pushed home failed
      {0, 1, 0, 0, 0, 0, 1},  // from idle
      {0, 0, 1, 1, 0, 0, 1},  // queued
      {0, 0, 0, 1, 0, 0, 1},  // held
      {0, 1, 0, 0, 1, 1, 1},  // posted
      {0, 1, 0, 0, 0, 1, 1},  // pushed
      {0, 0, 0, 0, 0, 0, 0},  // home
      {0, 0, 0, 0, 0, 0, 0},  // failed
  };
  for (size_t from = 0; from < all.size(); ++from) {
    for (size_t to = 0; to < all.size(); ++to) {
      EXPECT_EQ(PartitionMayMove(all[from], all[to]), may[from][to] != 0)
          << PartitionStateName(all[from]) << " to " << PartitionStateName(all[to]);
    }
  }
}

}  // namespace
}  // namespace byteps
