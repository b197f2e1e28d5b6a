#include "server/server_weights.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "server/placement.h"

namespace byteps {
namespace {

// Boot ids, one letter each.
std::vector<double> Weights(const std::string& workers, const std::string& servers) {
  std::vector<control::Host> hosts(workers.size() + servers.size());
  std::vector<const control::Host*> of_workers, of_servers;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const bool worker = i < workers.size();
    const char id = worker ? workers[i] : servers[i - workers.size()];
    if (id != '?') hosts[i].set_boot_id(std::string(1, id));
    (worker ? of_workers : of_servers).push_back(&hosts[i]);
  }
  return ServerWeights(of_workers, of_servers);
}

using Shares = std::vector<double>;

TEST(ServerWeightsTest, AllAlikeWhereNothingElseIsKnown) {
  EXPECT_EQ(Weights("aabb", "xy"), Shares{});    // no server beside workers
  EXPECT_EQ(Weights("aabb", "ab"), Shares{});    // all of them
  EXPECT_EQ(Weights("aabb", "ax"), Shares{});    // some worker hosts without
  EXPECT_EQ(Weights("aabb", "abxx"), Shares{});  // two on one host
  EXPECT_EQ(Weights("aa", "a"), Shares{});
  EXPECT_EQ(Weights("a?", "ax"), Shares{});
}

TEST(ServerWeightsTest, ExtraHostsGetTheSharesOfTheOptimum) {
  // n = 4, k = 2: an extra host gets 2(n-1)/(n^2+kn-2k) = 6/20, a colocated server (n-k)/(...) = 2/20.
  EXPECT_EQ(Weights("abcd", "abcdxy"), (Shares{2, 2, 2, 2, 6, 6}));
  EXPECT_EQ(Weights("aabb", "xab"), (Shares{2, 1, 1}));
  EXPECT_EQ(Weights("ab", "abxyz"), (Shares{0, 0, 2, 2, 2}));
  EXPECT_EQ(Weights("a", "ax"), (Shares{1, 0}));

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
