#include "server/membership/server_weights.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "server/membership/placement.h"

namespace byteps {
namespace {

// Hosts, one letter each; '?': not known. Small letters are boot ids, capital ones BYTEPS_HOST_ID on one machine.
ServerShares Shares(const std::string& workers, const std::string& servers) {
  std::vector<control::Host> hosts(workers.size() + servers.size());
  std::vector<const control::Host*> of_workers, of_servers;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const bool worker = i < workers.size();
    const char id = worker ? workers[i] : servers[i - workers.size()];
    if (id != '?') hosts[i].set_boot_id(std::string(1, id < 'a' ? 'z' : id));
    if (id < 'a' && id != '?') hosts[i].set_id(std::string(1, id));
    (worker ? of_workers : of_servers).push_back(&hosts[i]);
  }
  return SharesOf(of_workers, of_servers);
}

std::vector<double> Weights(const std::string& workers, const std::string& servers) {
  return Shares(workers, servers).weights;
}

using Numbers = std::vector<double>;

TEST(ServerWeightsTest, AllAlikeWhereNothingElseIsKnown) {
  EXPECT_EQ(Weights("aabb", "xy"), Numbers{});    // no server beside workers
  EXPECT_EQ(Weights("aabb", "ab"), Numbers{});    // all of them
  EXPECT_EQ(Weights("aabb", "ax"), Numbers{});    // some worker hosts without
  EXPECT_EQ(Weights("aabb", "abxx"), Numbers{});  // two on one host
  EXPECT_EQ(Weights("aa", "a"), Numbers{});
  EXPECT_EQ(Weights("a?", "ax"), Numbers{});
}

TEST(ServerWeightsTest, AtHomeAreAllOnOneHost) {
  EXPECT_TRUE(Shares("a", "a").at_home);
  EXPECT_TRUE(Shares("aaa", "aa").at_home);
  EXPECT_TRUE(Shares("AA", "A").at_home);
  EXPECT_FALSE(Shares("ab", "a").at_home);
  EXPECT_FALSE(Shares("ab", "ab").at_home);
  EXPECT_FALSE(Shares("aa", "ab").at_home);
  EXPECT_FALSE(Shares("aa", "b").at_home);
  EXPECT_FALSE(Shares("AA", "B").at_home);  // of one machine, with links of their own
  EXPECT_FALSE(Shares("a?", "a").at_home);
  EXPECT_FALSE(Shares("a", "").at_home);
}

TEST(ServerWeightsTest, SharesAreDescribed) {
  EXPECT_EQ(DescribeShares({}), "all servers have the same share");
  EXPECT_EQ(DescribeShares({1, 1, 2}), "shares of the servers, per cent: 25.0 25.0 50.0");
}

TEST(ServerWeightsTest, SaysWhyTheOptimumDoesNotApply) {
  EXPECT_EQ(Shares("aabb", "ab").obstacle, "");
  EXPECT_EQ(Shares("aabb", "abx").obstacle, "");
  EXPECT_NE(Shares("abc", "abx").obstacle.find("only 2 of 3 worker hosts have a server"), std::string::npos);
  EXPECT_NE(Shares("ab", "abxx").obstacle.find("several servers (4 servers on 3 hosts"), std::string::npos);
  EXPECT_NE(Shares("a?", "ax").obstacle.find("BYTEPS_HOST_ID"), std::string::npos);
}

TEST(ServerWeightsTest, HostIdsTellTheHostsOfOneMachineApart) {
  EXPECT_EQ(Weights("ABCD", "ABCDXY"), (Numbers{2, 2, 2, 2, 6, 6}));
  EXPECT_EQ(Shares("ABCD", "XABCD").dedicated, (std::vector<bool>{true, false, false, false, false}));
  // An id is no boot id, whatever it looks like.
  control::Host id, boot;
  id.set_id("a");
  boot.set_boot_id("a");
  EXPECT_EQ(SharesOf({&id}, {&boot}).dedicated, std::vector<bool>{true});
}

TEST(ServerWeightsTest, SharesAreThoseOfTheFormulas) {
  for (uint64_t n = 2; n <= 9; ++n) {
    for (uint64_t k = 1; k <= n; ++k) {
      const OptimalWeights optimum = OptimumOf(n, k);
      const auto all = static_cast<double>(n * n + k * n - 2 * k);
      const double sum = static_cast<double>(k) * optimum.dedicated + static_cast<double>(n) * optimum.colocated;
      EXPECT_DOUBLE_EQ(optimum.dedicated / sum, 2 * static_cast<double>(n - 1) / all) << n << " " << k;
      EXPECT_DOUBLE_EQ(optimum.colocated / sum, static_cast<double>(n - k) / all) << n << " " << k;
    }
  }
}

TEST(ServerWeightsTest, ExtraHostsGetTheSharesOfTheOptimum) {
  // n = 4, k = 2: an extra host gets 2(n-1)/(n^2+kn-2k) = 6/20, a colocated server (n-k)/(...) = 2/20.
  EXPECT_EQ(Weights("abcd", "abcdxy"), (Numbers{2, 2, 2, 2, 6, 6}));
  EXPECT_EQ(Weights("aabb", "xab"), (Numbers{2, 1, 1}));
  EXPECT_EQ(Weights("ab", "abxyz"), (Numbers{0, 0, 2, 2, 2}));
  EXPECT_EQ(Weights("a", "ax"), (Numbers{1, 0}));

  PlacementOptions options;
  options.lanes = {2, 2, 2, 2, 2, 2};
  options.slot_bytes = 512 << 10;
  options.weights = Weights("abcd", "abcdxy");
  Placement placement(options);
  uint64_t total = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t elements = 100000 + 7919u * static_cast<uint64_t>(i);
    total += 4 * elements;
    ASSERT_TRUE(placement.Add(elements, 4, std::nullopt).ok());
  }
  for (uint32_t server = 0; server < 6; ++server) {
    EXPECT_NEAR(static_cast<double>(placement.bytes(server)) / static_cast<double>(total), server < 4 ? 0.1 : 0.3,
                0.005);
  }
}

}  // namespace
}  // namespace byteps
