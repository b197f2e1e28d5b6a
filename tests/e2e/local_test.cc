// Whole jobs without servers: the workers of one host reduce among themselves, in each other's memory.
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>
#include <utility>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

TEST(LocalTest, EveryTypeOperationAndSizeBitForBit) {
  for (int workers : {2, 3}) {
    Job job({.workers = workers, .servers = 0});
    job.StartWorkers("sums");
    job.ExpectSuccess(120 * kSecond);
  }
}

// Servers that are there but were not asked for have nothing to do.
TEST(LocalTest, WithServersBesideIt) {
  Job job({.workers = 2, .servers = 1, .of_workers = {{"BYTEPS_FORCE_DISTRIBUTED", "0"}}});
  job.StartWorkers("sums");
  job.ExpectSuccess(120 * kSecond);
}

// The library's own buffers beside other memory, on one rank and on all.
TEST(LocalTest, TensorsInBuffers) {
  for (const char* kinds : {"1", "4"}) {
    Job job({.workers = 3, .servers = 0});
    job.StartWorkers("buffers", kinds);
    job.ExpectSuccess(120 * kSecond);
  }
}

// They are reached directly even there.
TEST(LocalTest, TensorsInBuffersWithoutReadingEachOthersMemory) {
  for (const char* kinds : {"2", "4"}) {
    Job job({.workers = 2, .servers = 0, .of_workers = {{"BYTEPS_SHM_PROCESS_VM", "0"}}});
    job.StartWorkers("buffers", kinds);
    job.ExpectSuccess(120 * kSecond);
  }
}

// Containers with PID namespaces of their own: no worker can look into another one by its pid. They copy through shared
// memory; with a server beside them, too.
TEST(LocalTest, WorkersOfDifferentPidNamespaces) {
  if (!CanRunHindered("apart")) GTEST_SKIP() << "this user may not make a PID namespace (root may: CAP_SYS_ADMIN)";
  for (const int servers : {0, 1}) {
    for (const auto& [scenario, argument] :
         {std::pair{"sums", ""}, std::pair{"buffers_brief", "4"}, std::pair{"mismatches", ""}}) {
      SCOPED_TRACE(std::string(scenario) + ", " + std::to_string(servers) + " servers");
      Job job({.workers = 3,
               .servers = servers,
               .of_workers = {{"BYTEPS_FORCE_DISTRIBUTED", "0"}, {"PS_VERBOSE", "1"}},
               .hindered_workers = "apart"});
      job.StartWorkers(scenario, argument);
      job.ExpectSuccess(120 * kSecond);
      EXPECT_NE(job.worker(0).Output().find("stages: local"), std::string::npos) << job.Output();
    }
  }
}

TEST(LocalTest, AgainAndAgainCostsNoPages) {
  Job job({.workers = 2, .servers = 0});
  job.StartWorkers("steady", "100");
  job.ExpectSuccess(120 * kSecond);
}

TEST(LocalTest, OppositeOrders) {
  Job job({.workers = 3, .servers = 0});
  job.StartWorkers("orders");
  job.ExpectSuccess(120 * kSecond);
}

TEST(LocalTest, BroadcastAndBarrier) {
  Job job({.workers = 3, .servers = 0});
  job.StartWorkers("broadcasts");
  job.ExpectSuccess();
}

TEST(LocalTest, ManyLivesInOneProcess) {
  Job job({.workers = 2, .servers = 0, .environment = {{"BYTEPS_JOB_LINGER", "10"}}});
  job.StartWorkers("lives", "100");
  job.ExpectSuccess(120 * kSecond);
}

TEST(LocalTest, TwoSessionsSideBySide) {
  Job job({.workers = 2, .servers = 0});
  job.StartWorkers("sessions");
  job.ExpectSuccess();
}

TEST(LocalTest, MismatchesAreErrorsOnEveryRankAndTheSessionGoesOn) {
  Job job({.workers = 2, .servers = 0});
  job.StartWorkers("mismatches");
  job.ExpectSuccess();
}

TEST(LocalTest, DeadlinesCancelsDuplicates) {
  Job job({.workers = 2, .servers = 0});
  job.StartWorkers("patience");
  job.ExpectSuccess();
}

TEST(LocalTest, ForkedChildren) {
  Job job({.workers = 2, .servers = 0});
  job.StartWorkers("fork");
  job.ExpectSuccess();
}

TEST(LocalTest, IdleUsesNoProcessor) {
  Job job({.workers = 2, .servers = 0});
  job.StartWorkers("idle");
  job.ExpectIdle();
  job.ExpectSuccess();
}

// It dies in the middle of the others' memory.
TEST(LocalTest, AKilledWorkerIsNamedToAllOthers) {
  Job job({.workers = 3, .servers = 0});
  job.StartWorkers("loop", "200000");
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", 60 * kSecond)) << job.Output();
  }
  job.worker(1).Signal(SIGKILL);
  for (int rank : {0, 2}) {
    EXPECT_EQ(job.worker(rank).Wait(60 * kSecond), std::optional<int>(3)) << job.Output();
    EXPECT_NE(job.worker(rank).Output().find("worker rank 1"), std::string::npos) << job.Output();
  }
}

// As where a system forbids it: large tensors go through shared memory.
TEST(LocalTest, WithoutReadingEachOthersMemory) {
  Job job({.workers = 3, .servers = 0, .of_workers = {{"BYTEPS_SHM_PROCESS_VM", "0"}}});
  job.StartWorkers("sums");
  job.ExpectSuccess(120 * kSecond);
}

TEST(LocalTest, WhereItIsRefusedTheReasonIsSaid) {
  Job job({.workers = 2, .servers = 0, .of_workers = {{"BYTEPS_LOCAL_REDUCE", "0"}}});
  job.StartWorkers("sums");
  EXPECT_NE(job.worker(0).Wait(60 * kSecond), std::optional<int>(0)) << job.Output();
  EXPECT_NE(job.worker(1).Wait(60 * kSecond), std::optional<int>(0)) << job.Output();
  EXPECT_NE(job.Output().find("BYTEPS_LOCAL_REDUCE=0"), std::string::npos) << job.Output();
}

// A tensor that one rank has not submitted is named in the log of the other, with both ranks, well before its deadline.
TEST(StallTest, TheLogSaysWhoHasSubmittedAndWhoHasNot) {
  for (const char* forced : {"0", "1"}) {
    Job job({.workers = 2,
             .servers = 1,
             .environment = {{"BYTEPS_STALL_WARNING", "1"}},
             .of_workers = {{"BYTEPS_FORCE_DISTRIBUTED", forced}}});
    job.StartWorkers("stall");
    EXPECT_TRUE(job.worker(0).WaitForOutput("stall: push_pull (sum) of \"late\"", 60 * kSecond)) << job.Output();
    const std::string said = job.worker(0).Output();
    const std::string line = said.substr(said.find("stall: "));
    EXPECT_NE(line.find(*forced == '1' ? " s not by rank 1" : "not submitted by rank 1"), std::string::npos) << line;
    job.worker(1).Signal(SIGCONT);
    job.ExpectSuccess(60 * kSecond);
  }
}

}  // namespace
}  // namespace byteps
