#include "server/membership/epoch_plan.h"

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EpochPlanTest : public testing::Test {
 protected:
  JobMember* AddWorker(int32_t host, int32_t local_rank, int32_t local_size = 1, bool local = false) {
    JobMember& worker = Add(control::WORKER, "host" + std::to_string(host));
    worker.hello.set_host_index(host);
    worker.hello.set_num_hosts(2);
    worker.hello.set_local_rank(local_rank);
    worker.hello.set_local_size(local_size);
    if (local) {
      worker.hello.mutable_local()->set_transport("shm");
      worker.hello.mutable_local()->set_provider("shm;here");
      worker.hello.set_inline_bytes(uint64_t{4096} - worker.id);
    } else {
      worker.hello.set_local_refusal("it does not want to");
    }
    workers_.push_back(&worker);
    return &worker;
  }

  JobMember* AddServer(const std::string& host, int lanes = 1, uint64_t slot_bytes = 4096) {
    JobMember& server = Add(control::SERVER, host);
    server.rank = static_cast<int32_t>(servers_.size());
    server.hello.set_slot_bytes(slot_bytes);
    for (int lane = 0; lane < lanes; ++lane) server.hello.add_lanes()->set_transport("tcp");
    servers_.push_back(&server);
    return &server;
  }

  absl::StatusOr<EpochPlan> Plan(const EpochOptions& options = {}) const {
    return PlanEpoch(workers_, servers_, options);
  }

  std::vector<JobMember*> workers_, servers_;

 private:
  JobMember& Add(control::Role role, const std::string& host) {
    JobMember& member = members_.emplace_back();
    member.id = static_cast<uint32_t>(members_.size());
    member.hello.set_role(role);
    member.hello.set_preferred_rank(-1);
    member.hello.set_pid(1000 + member.id);
    member.hello.mutable_host()->set_name(host);
    member.hello.mutable_host()->set_boot_id("boot of " + host);
    member.hello.mutable_host()->set_ipc_namespace("ipc");
    return member;
  }

  std::deque<JobMember> members_;
};

TEST_F(EpochPlanTest, RanksGoByHostWhicheverCameFirst) {
  JobMember* second = AddWorker(1, 0);
  JobMember* first = AddWorker(0, 0);
  AddServer("s");
  const absl::StatusOr<EpochPlan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->workers, ElementsAre(first, second));
  ASSERT_EQ(plan->epoch.workers_size(), 2);
  EXPECT_EQ(plan->epoch.workers(0).member(), first->id);
  EXPECT_EQ(plan->epoch.workers(0).rank(), 0);
  EXPECT_EQ(plan->epoch.workers(1).member(), second->id);
  EXPECT_EQ(plan->epoch.workers(1).rank(), 1);
  EXPECT_EQ(plan->epoch.workers(1).host().name(), "host1");
  EXPECT_EQ(plan->epoch.workers(1).pid(), 1000 + second->id);
  EXPECT_TRUE(plan->served());
}

TEST_F(EpochPlanTest, EverythingIsTheLeastOfWhatMembersAllow) {
  AddWorker(0, 0)->hello.set_partition_bytes(5000);
  AddWorker(1, 0)->hello.set_partition_bytes(3000);
  AddServer("s", 2, 8192);
  AddServer("t", 3, 2048);
  const absl::StatusOr<EpochPlan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->placement.partition_bytes, 3000u);
  EXPECT_EQ(plan->placement.slot_bytes, 2048u);
  EXPECT_EQ(plan->epoch.slot_bytes(), 2048u);
  EXPECT_THAT(plan->placement.lanes, ElementsAre(2u, 3u));
  ASSERT_EQ(plan->epoch.servers_size(), 2);
  EXPECT_EQ(plan->epoch.servers(1).lanes_size(), 3);
}

TEST_F(EpochPlanTest, AnUnsetBoundBindsNone) {
  AddWorker(0, 0)->hello.set_partition_bytes(0);
  AddWorker(1, 0)->hello.set_partition_bytes(3000);
  AddServer("s");
  EXPECT_EQ(Plan()->placement.partition_bytes, 3000u);
  workers_[1]->hello.set_partition_bytes(0);
  EXPECT_EQ(Plan()->placement.partition_bytes, 0u);
}

TEST_F(EpochPlanTest, WorkersOfOneHostNeedNoServers) {
  AddWorker(0, 0, 2, true);
  AddWorker(0, 1, 2, true);
  const absl::StatusOr<EpochPlan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->served());
  EXPECT_THAT(plan->epoch.local_sizes(), ElementsAre(2u));
  EXPECT_EQ(plan->epoch.inline_bytes(), 4096u - workers_[1]->id);
}

TEST_F(EpochPlanTest, WorkersThatCannotReduceAmongThemselvesNeedAServer) {
  AddWorker(0, 0, 2, true);
  AddWorker(0, 1, 2);
  const absl::StatusOr<EpochPlan> plan = Plan();
  EXPECT_TRUE(absl::IsFailedPrecondition(plan.status()));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("DMLC_NUM_SERVER=0"));
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("it does not want to"));
  AddServer("s");
  ASSERT_TRUE(Plan().ok());
  EXPECT_TRUE(Plan()->served());
  EXPECT_THAT(Plan()->epoch.local_sizes(), IsEmpty());
}

TEST_F(EpochPlanTest, SeveralHostsShareTheirPartsAmongTheirWorkers) {
  for (int32_t host = 0; host < 2; ++host) {
    for (int32_t local_rank = 0; local_rank < 3; ++local_rank) AddWorker(host, local_rank, 3, true);
  }
  AddServer("s");
  const absl::StatusOr<EpochPlan> plan = Plan();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->served());
  EXPECT_THAT(plan->epoch.local_sizes(), ElementsAre(3u, 3u));
  EXPECT_THAT(plan->epoch.group_sizes(), ElementsAre(3u, 3u));
  EXPECT_EQ(plan->placement.owners, 3u);
}

TEST_F(EpochPlanTest, SharesFollowTheOptimum) {
  AddWorker(0, 0);
  AddWorker(1, 0);
  AddServer("host0");
  AddServer("host1");
  AddServer("s");
  EXPECT_THAT(Plan()->placement.weights, ElementsAre(1.0, 1.0, 2.0));
  EXPECT_THAT(Plan()->placement.hash.dedicated, ElementsAre(false, false, true));
  EXPECT_THAT(Plan({.mixed_mode = MixedMode::kOff})->placement.weights, IsEmpty());
  EXPECT_EQ(Plan({.mixed_mode = MixedMode::kOn})->obstacle, "");
}

TEST_F(EpochPlanTest, WithoutAnOptimumTheMixedHashKnowsNoDedicatedServers) {
  for (int32_t host = 0; host < 4; ++host) AddWorker(host, 0);
  AddServer("host0");
  AddServer("s");
  const absl::StatusOr<EpochPlan> plan = Plan({.mixed_mode = MixedMode::kOn});
  EXPECT_THAT(plan->obstacle, HasSubstr("only 1 of 4"));
  EXPECT_THAT(plan->placement.hash.dedicated, IsEmpty()) << "by the formula, server 0 gets everything";
}

TEST_F(EpochPlanTest, OneHostIsAtHome) {
  AddWorker(0, 0);
  AddServer("host0");
  AddServer("host0");
  EXPECT_TRUE(Plan()->placement.at_home);
  AddServer("s");
  EXPECT_FALSE(Plan()->placement.at_home);
}

TEST_F(EpochPlanTest, SaysWhatHindersAMixedModeThatWasAskedFor) {
  AddWorker(0, 0);
  AddWorker(1, 0);
  AddServer("host0");
  EXPECT_EQ(Plan()->obstacle, "");
  EXPECT_THAT(Plan({.mixed_mode = MixedMode::kOn})->obstacle,
              AllOf(HasSubstr("BYTEPS_ENABLE_MIXED_MODE=on, but"), HasSubstr("only 1 of 2 worker hosts")));
  // Who puts a server on a worker host beside dedicated ones (`bpslaunch --colocate`) asks for it, too.
  AddServer("s");
  EXPECT_THAT(Plan()->obstacle, AllOf(HasSubstr("some are dedicated, but"), HasSubstr("only 1 of 2 worker hosts")));
  EXPECT_EQ(Plan({.mixed_mode = MixedMode::kOff})->obstacle, "");
}

TEST_F(EpochPlanTest, WrongRanksAndGroupsAreRefused) {
  AddWorker(0, 0)->hello.set_preferred_rank(0);
  AddWorker(1, 0);
  AddServer("s");
  EXPECT_THAT(std::string(Plan().status().message()), HasSubstr("BYTEPS_GLOBAL_RANK"));
  workers_[1]->hello.set_preferred_rank(1);
  EXPECT_TRUE(Plan().ok());
  for (JobMember* worker : workers_) worker->hello.set_groups("0-3");
  EXPECT_FALSE(Plan().ok());
}

}  // namespace
}  // namespace byteps
