#include "server/membership/membership.h"

#include <string>
#include <utility>
#include <vector>

#include "core/control/control.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Workers by rank; those of a host of several can reduce among themselves, those that are alone there cannot.
class LocalSetsTest : public testing::Test {
 protected:
  explicit LocalSetsTest(std::vector<int32_t> hosts = {2, 3}) { Fill(hosts); }

  void Fill(const std::vector<int32_t>& hosts) {
    hellos_.clear();
    for (size_t host = 0; host < hosts.size(); ++host) {
      for (int32_t local_rank = 0; local_rank < hosts[host]; ++local_rank) {
        control::Hello& hello = hellos_.emplace_back();
        hello.set_role(control::WORKER);
        hello.set_host_index(static_cast<int32_t>(host));
        hello.set_num_hosts(static_cast<int32_t>(hosts.size()));
        hello.set_local_rank(local_rank);
        hello.set_local_size(hosts[host]);
        hello.mutable_host()->set_name("host" + std::to_string(host));
        hello.mutable_host()->set_boot_id("boot" + std::to_string(host));
        hello.mutable_host()->set_ipc_namespace("ipc");
        hello.set_pid(static_cast<int64_t>(1000 + hellos_.size()));
        if (hosts[host] == 1 && hosts.size() > 1) {
          hello.set_local_refusal("it is the only worker of its host");
        } else {
          hello.mutable_local()->set_transport("shm");
          hello.mutable_local()->set_provider("shm;here");
        }
      }
    }
  }

  LocalSets Find(const std::vector<uint32_t>& groups) const {
    std::vector<const control::Hello*> hellos;
    for (const control::Hello& hello : hellos_) hellos.push_back(&hello);
    return FindLocalSets(hellos, groups);
  }
  // With the groups that BYTEPS_GROUPS=host makes.
  LocalSets FindByHost() const {
    std::vector<const control::Hello*> hellos;
    for (const control::Hello& hello : hellos_) hellos.push_back(&hello);
    return FindLocalSets(hellos, *GroupSizes(hellos));
  }

  std::vector<control::Hello> hellos_;
};

TEST_F(LocalSetsTest, OneHostIsOneSetWhateverItsGroups) {
  Fill({4});
  for (const std::vector<uint32_t>& groups : {std::vector<uint32_t>{4}, {2, 2}, {1, 1, 1, 1}}) {
    const LocalSets sets = Find(groups);
    EXPECT_THAT(sets.sizes, ElementsAre(4));
    EXPECT_EQ(sets.refusal, "");
  }
}

TEST_F(LocalSetsTest, SeveralHostsAreASetEach) {
  const LocalSets sets = FindByHost();
  EXPECT_THAT(sets.sizes, ElementsAre(2, 3));
  EXPECT_EQ(sets.refusal, "");
}

TEST_F(LocalSetsTest, AMemberAloneOnItsHostNeedsNoTransportForIt) {
  Fill({1, 3, 1});
  EXPECT_THAT(FindByHost().sizes, ElementsAre(1, 3, 1));
  Fill({1, 1, 1});
  const LocalSets sets = FindByHost();
  EXPECT_THAT(sets.sizes, IsEmpty());
  EXPECT_THAT(sets.refusal, HasSubstr("the only worker of its host"));
}

// Else the bits would depend on it.
TEST_F(LocalSetsTest, OneThatCannotKeepsAllFromIt) {
  hellos_[3].clear_local();
  hellos_[3].set_local_refusal("BYTEPS_SHM=0");
  LocalSets sets = FindByHost();
  EXPECT_THAT(sets.sizes, IsEmpty());
  EXPECT_THAT(sets.refusal, HasSubstr("worker host 1 local rank 1"));
  EXPECT_THAT(sets.refusal, HasSubstr("BYTEPS_SHM=0"));

  Fill({2, 3});
  hellos_[1].set_force_servers(true);
  sets = FindByHost();
  EXPECT_THAT(sets.sizes, IsEmpty());
  EXPECT_THAT(sets.refusal, HasSubstr("BYTEPS_FORCE_DISTRIBUTED=1"));

  Fill({2, 3});
  hellos_[4].clear_local();
  sets = FindByHost();
  EXPECT_THAT(sets.sizes, IsEmpty());
  EXPECT_THAT(sets.refusal, HasSubstr("worker host 1 local rank 2"));
}

TEST_F(LocalSetsTest, GroupsAreTheSetsAsLongAsNoneCrossesHosts) {
  Fill({4, 4});
  EXPECT_THAT(Find({2, 2, 4}).sizes, ElementsAre(2, 2, 4));
  EXPECT_THAT(Find({4, 1, 3}).sizes, ElementsAre(4, 1, 3));
  const LocalSets across = Find({3, 2, 3});
  EXPECT_THAT(across.sizes, IsEmpty());
  EXPECT_THAT(across.refusal, HasSubstr("are on different hosts"));
  EXPECT_THAT(across.refusal, HasSubstr("worker host 1 local rank 0"));
  // One level of all, and no member with any member.
  EXPECT_THAT(Find({8}).sizes, IsEmpty());
  EXPECT_THAT(Find({1, 1, 1, 1, 1, 1, 1, 1}).sizes, IsEmpty());
}

TEST_F(LocalSetsTest, AMemberThatCallsItselfOfOneHostMustBeThere) {
  // Two hosts in name, on one machine: each by itself.
  Fill({2, 2});
  for (control::Hello& hello : hellos_) hello.mutable_host()->set_boot_id("boot");
  EXPECT_THAT(FindByHost().sizes, ElementsAre(2, 2));
  // One host in name, on two machines; in two containers; with transports that do not meet.
  Fill({2, 2});
  hellos_[1].mutable_host()->set_boot_id("another");
  EXPECT_THAT(FindByHost().sizes, IsEmpty());
  EXPECT_THAT(FindByHost().refusal, HasSubstr("are on different hosts"));
  Fill({2, 2});
  hellos_[2].mutable_host()->set_ipc_namespace("another");
  EXPECT_THAT(FindByHost().sizes, IsEmpty());
  EXPECT_THAT(FindByHost().refusal, HasSubstr("are on one host in different IPC namespaces (containers: "));
  Fill({2, 2});
  hellos_[2].mutable_host()->set_pid_namespace("another");
  EXPECT_THAT(FindByHost().sizes, ElementsAre(2, 2));
  Fill({2, 2});
  hellos_[3].mutable_local()->set_provider("shm;there");
  EXPECT_THAT(FindByHost().sizes, IsEmpty());
  EXPECT_THAT(FindByHost().refusal, HasSubstr("have different transports for one host"));
}

// BYTEPS_GLOBAL_RANK may mix the hosts.
TEST_F(LocalSetsTest, RanksThatAlternateBetweenHostsAreNoSets) {
  Fill({2, 2});
  std::swap(hellos_[1], hellos_[2]);
  const LocalSets sets = FindByHost();
  EXPECT_THAT(sets.sizes, IsEmpty());
  EXPECT_NE(sets.refusal, "");
}

}  // namespace
}  // namespace byteps
