#include "server/reducer/contributors.h"

#include <gtest/gtest.h>

#include <vector>

namespace byteps {
namespace {

using Sizes = std::vector<uint32_t>;

absl::StatusOr<Contributors> Make(int workers, const Sizes& groups, const Sizes& local) {
  control::Epoch epoch;
  for (int rank = 0; rank < workers; ++rank) epoch.add_workers()->set_rank(rank);
  for (const uint32_t size : groups) epoch.add_group_sizes(size);
  for (const uint32_t size : local) epoch.add_local_sizes(size);
  return Contributors::Make(epoch);
}

TEST(Contributors, EveryWorkerByItself) {
  const absl::StatusOr<Contributors> each = Make(3, {2, 1}, {});
  ASSERT_TRUE(each.ok()) << each.status();
  EXPECT_EQ(each->count(), 3u);
  EXPECT_FALSE(each->joint());
  EXPECT_EQ(Sizes(each->groups().begin(), each->groups().end()), Sizes({2, 1}));
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(each->of(rank), rank);
    EXPECT_EQ(each->first(rank), rank);
    EXPECT_EQ(each->last(rank), rank + 1);
  }
}

TEST(Contributors, TheWorkersOfAHostAsOne) {
  const absl::StatusOr<Contributors> hosts = Make(6, {3, 1, 2}, {3, 1, 2});
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_EQ(hosts->count(), 3u);
  EXPECT_EQ(hosts->workers(), 6u);
  EXPECT_TRUE(hosts->joint());
  EXPECT_TRUE(hosts->groups().empty());  // what comes is folded already
  const uint32_t of[] = {0, 0, 0, 1, 2, 2};
  for (uint32_t rank = 0; rank < 6; ++rank) EXPECT_EQ(hosts->of(rank), of[rank]);
  EXPECT_EQ(hosts->first(2), 4u);
  EXPECT_EQ(hosts->last(2), 6u);
}

TEST(Contributors, NumbersThatDoNotFitAreRefused) {
  EXPECT_FALSE(Make(0, {}, {}).ok());
  EXPECT_FALSE(Make(3, {2}, {}).ok());
  EXPECT_FALSE(Make(3, {3, 0}, {}).ok());
  EXPECT_FALSE(Make(3, {2, 1}, {2, 2}).ok());
  EXPECT_FALSE(Make(3, {2, 1}, {1, 2}).ok());
  EXPECT_FALSE(Make(3, {3}, {2, 1}).ok());
}

}  // namespace
}  // namespace byteps
