#include "server/membership/server_ranks.h"

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using ::testing::ElementsAre;

// Servers by arrival; each is called by the name of its host.
class ServerRanksTest : public testing::Test {
 protected:
  void Arrive(const std::string& host, int32_t preferred = -1, int32_t rank = -1) {
    JobMember& server = members_.emplace_back();
    server.hello.set_role(control::SERVER);
    server.hello.set_preferred_rank(preferred);
    server.hello.mutable_host()->set_name(host);
    server.hello.mutable_host()->set_address("address of " + host);
    server.rank = rank;
    servers_.push_back(&server);
  }

  // The hosts by rank.
  std::vector<std::string> Rank(const std::vector<std::string>& ordered_hosts = {}) {
    RankServers(ordered_hosts, &servers_);
    std::vector<std::string> hosts;
    for (size_t rank = 0; rank < servers_.size(); ++rank) {
      EXPECT_EQ(servers_[rank]->rank, static_cast<int32_t>(rank));
      hosts.push_back(servers_[rank]->hello.host().name());
    }
    return hosts;
  }

  std::deque<JobMember> members_;
  std::vector<JobMember*> servers_;
};

TEST_F(ServerRanksTest, GoesByArrival) {
  Arrive("c");
  Arrive("a");
  Arrive("b");
  EXPECT_THAT(Rank(), ElementsAre("c", "a", "b"));
}

TEST_F(ServerRanksTest, AMemberThatAskedForARankGetsIt) {
  Arrive("first");
  Arrive("asks for 0", 0);
  Arrive("asks for 3", 3);
  Arrive("last");
  EXPECT_THAT(Rank(), ElementsAre("asks for 0", "first", "last", "asks for 3"));
}

TEST_F(ServerRanksTest, OrderedHostsComeBeforeArrival) {
  Arrive("x");
  Arrive("b");
  Arrive("a");
  Arrive("y");
  // By name or by address; who is not named comes after those, by arrival.
  EXPECT_THAT(Rank({"a", "address of b", "nobody"}), ElementsAre("a", "b", "x", "y"));
}

TEST_F(ServerRanksTest, ServersOfOneHostGoByArrival) {
  Arrive("b");
  Arrive("a");
  Arrive("b");
  const JobMember* first_of_b = &members_[0];
  EXPECT_THAT(Rank({"b", "a"}), ElementsAre("b", "b", "a"));
  EXPECT_EQ(servers_[0], first_of_b);
}

TEST_F(ServerRanksTest, AnAskedRankWinsOverOrderedHosts) {
  Arrive("a", 1);
  Arrive("b");
  EXPECT_THAT(Rank({"a", "b"}), ElementsAre("b", "a"));
}

TEST_F(ServerRanksTest, AMemberThatHasARankKeepsIt) {
  Arrive("old", -1, 1);
  Arrive("old too", -1, 0);
  // Comes in the place of one that has gone, and would like one that is taken.
  Arrive("new", 0);
  EXPECT_THAT(Rank({"new", "old"}), ElementsAre("old too", "old", "new"));
  EXPECT_THAT(Rank({"new", "old"}), ElementsAre("old too", "old", "new"));
}

}  // namespace
}  // namespace byteps
