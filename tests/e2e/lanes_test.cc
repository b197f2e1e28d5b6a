// Whole jobs over tcp with several lanes, which carry every write; also between sides with different numbers of lanes.

#include <signal.h>

#include <map>
#include <optional>
#include <string>

#include "core/base/time.h"
#include "gtest/gtest.h"
#include "tests/e2e/job.h"

namespace byteps {
namespace {

// Every write that is not inline goes over the lanes.
const std::map<std::string, std::string> kThreeLanes = {{"BYTEPS_TCP_LANES", "3"}, {"BYTEPS_TCP_LANE_BYTES", "0"}};

TEST(LanesTest, EveryTypeOperationAndSizeBitForBit) {
  Job job({.workers = 2, .servers = 2, .environment = kThreeLanes});
  job.StartWorkers("sums");
  job.ExpectSuccess(120 * kSecond);
}

TEST(LanesTest, WorkersWithMoreLanesThanServers) {
  Job job({.workers = 2,
           .servers = 1,
           .of_servers = {{"BYTEPS_TCP_LANES", "1"}},
           .of_workers = {{"BYTEPS_TCP_LANES", "4"}, {"BYTEPS_TCP_LANE_BYTES", "0"}}});
  job.StartWorkers("orders");
  job.ExpectSuccess(120 * kSecond);
}

TEST(LanesTest, DeadlinesCancelsDuplicates) {
  Job job({.workers = 2, .servers = 2, .environment = kThreeLanes});
  job.StartWorkers("patience");
  job.ExpectSuccess(120 * kSecond);
}

TEST(LanesTest, ManyLivesInOneProcess) {
  auto environment = kThreeLanes;
  environment["BYTEPS_JOB_LINGER"] = "10";
  Job job({.workers = 2, .servers = 1, .environment = environment});
  job.StartWorkers("lives", "10");
  job.ExpectSuccess(120 * kSecond);
}

TEST(LanesTest, IdleUsesNoProcessor) {
  Job job({.workers = 2, .servers = 1, .environment = kThreeLanes});
  job.StartWorkers("idle");
  job.ExpectIdle();
  job.ExpectSuccess();
}

// In the middle of large rounds, on every lane at once.
TEST(LanesTest, AKilledServerIsNamedToAllWorkers) {
  Job job({.workers = 2, .servers = 2, .environment = kThreeLanes});
  job.StartWorkers("loop", "4000000");
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", 60 * kSecond)) << job.Output();
  }
  job.server(1).Signal(SIGKILL);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job.worker(rank).Wait(60 * kSecond), std::optional<int>(3)) << job.Output();
    const std::string output = job.worker(rank).Output();
    EXPECT_NE(output.find("server rank 1"), std::string::npos) << output;
  }
}

}  // namespace
}  // namespace byteps
