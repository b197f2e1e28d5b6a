#include "core/worker/collectives/path_costs.h"

#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr uint64_t kLarge = 64 << 20;
constexpr double kBytes = kLarge;

double Busiest(const JobLinks& links, CollectivePath path, CollectiveKind kind, uint64_t bytes = kLarge) {
  return PathCosts(links).Cost(path, kind, bytes).busiest;
}

TEST(PathCostsTest, TheBusiestLinkOfEachWay) {
  const JobLinks four = JobLinks::Uniform(4, 1, 4, 0);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kServers, CollectiveKind::kAllReduce), kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kAllReduce), 1.5 * kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kServers, CollectiveKind::kBroadcast), kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kBroadcast), kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kAllGather), 3 * kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kReduceScatter), 0.75 * kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kAllToAll), 0.75 * kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kReduce), kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kGather), 3 * kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kScatter), 0.75 * kBytes);
  EXPECT_DOUBLE_EQ(Busiest(four, CollectivePath::kPeers, CollectiveKind::kSend), kBytes);
  // One server gives to all.
  const JobLinks one = JobLinks::Uniform(4, 1, 1, 0);
  EXPECT_DOUBLE_EQ(Busiest(one, CollectivePath::kServers, CollectiveKind::kAllReduce), 4 * kBytes);
  EXPECT_DOUBLE_EQ(Busiest(one, CollectivePath::kServers, CollectiveKind::kBroadcast), 3 * kBytes);
  // A server on each worker host: a quarter stays, three come from others, and the same of its own server's.
  const JobLinks colocated = JobLinks::Uniform(4, 1, 4, 4);
  EXPECT_DOUBLE_EQ(Busiest(colocated, CollectivePath::kServers, CollectiveKind::kAllReduce), 1.5 * kBytes);
  // Two workers of a host reduce first: one host sends once to the servers, but twice among peers.
  const JobLinks pairs = JobLinks::Uniform(2, 2, 2, 0);
  EXPECT_DOUBLE_EQ(Busiest(pairs, CollectivePath::kServers, CollectiveKind::kAllReduce), kBytes);
  EXPECT_DOUBLE_EQ(Busiest(pairs, CollectivePath::kPeers, CollectiveKind::kAllReduce), 2 * kBytes);
}

CollectivePath Choice(const JobLinks& links, CollectiveKind kind, uint64_t bytes) {
  return PathCosts(links).Choose(kind, bytes);
}

TEST(PathCostsTest, ServersWhereTheySaveAndPeersWhereTheyDoNot) {
  EXPECT_EQ(Choice(JobLinks::Uniform(4, 1, 4, 0), CollectiveKind::kAllReduce, kLarge), CollectivePath::kServers);
  EXPECT_EQ(Choice(JobLinks::Uniform(4, 1, 1, 0), CollectiveKind::kAllReduce, kLarge), CollectivePath::kPeers);
  EXPECT_EQ(Choice(JobLinks::Uniform(4, 1, 1, 0), CollectiveKind::kBroadcast, kLarge), CollectivePath::kPeers);
  EXPECT_EQ(Choice(JobLinks::Uniform(4, 1, 4, 0), CollectiveKind::kBroadcast, kLarge), CollectivePath::kServers);
  for (const CollectiveKind kind : {CollectiveKind::kAllToAll, CollectiveKind::kAllGather, CollectiveKind::kSend}) {
    EXPECT_EQ(Choice(JobLinks::Uniform(4, 1, 4, 0), kind, kLarge), CollectivePath::kPeers);
  }
  // One message to each of a few is sooner there than two in turn, but each worker's work grows with their number.
  EXPECT_EQ(Choice(JobLinks::Uniform(4, 1, 4, 0), CollectiveKind::kAllReduce, 1000), CollectivePath::kPeers);
  EXPECT_EQ(Choice(JobLinks::Uniform(32, 1, 32, 0), CollectiveKind::kAllReduce, 1000), CollectivePath::kServers);
}

TEST(PathCostsTest, WithoutANetworkThereIsNothingToSave) {
  EXPECT_EQ(Choice(JobLinks::Uniform(1, 4, 0, 0), CollectiveKind::kAllReduce, kLarge), CollectivePath::kShared);
  EXPECT_EQ(Choice(JobLinks::Uniform(1, 1, 1, 1), CollectiveKind::kAllReduce, kLarge), CollectivePath::kAlone);
  JobLinks apart = JobLinks::Uniform(1, 4, 1, 1);
  apart.local_sizes.clear();  // they cannot share memory
  EXPECT_EQ(Choice(apart, CollectiveKind::kAllReduce, 8), CollectivePath::kServers);
  EXPECT_EQ(Choice(apart, CollectiveKind::kBroadcast, kLarge), CollectivePath::kServers);
}

TEST(PathCostsTest, ARuleDecidesWhereThereAreTwoWays) {
  JobLinks links = JobLinks::Uniform(4, 1, 1, 0);
  links.rule = PathRule::kServers;
  EXPECT_EQ(Choice(links, CollectiveKind::kAllReduce, kLarge), CollectivePath::kServers);
  EXPECT_EQ(Choice(links, CollectiveKind::kAllGather, kLarge), CollectivePath::kPeers);
  links = JobLinks::Uniform(1, 4, 0, 0);
  links.rule = PathRule::kPeers;
  EXPECT_EQ(Choice(links, CollectiveKind::kAllReduce, kLarge), CollectivePath::kPeers);
}

TEST(PathCostsTest, LinksAreThoseOfTheMembership) {
  control::Epoch epoch;
  for (const char* host : {"a", "a", "b"}) epoch.add_workers()->mutable_host()->set_id(host);
  for (const char* host : {"b", "c"}) epoch.add_servers()->mutable_host()->set_id(host);
  epoch.add_server_shares(1);
  epoch.add_server_shares(3);
  epoch.set_collective_path("peers");
  const JobLinks links = JobLinks::Of(epoch);
  EXPECT_EQ(links.workers, (std::vector<size_t>{0, 0, 1}));
  EXPECT_EQ(links.servers, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(links.shares, (std::vector<double>{0.25, 0.75}));
  EXPECT_EQ(links.rule, PathRule::kPeers);
}

}  // namespace
}  // namespace byteps
