// Whole jobs of real processes, small and few, for the sanitizers. The large ones are in job_test.cc.
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

// Sanitizers slow everything down; nothing that works comes near it.
constexpr Time kPatience = 300 * kSecond;

void ExpectSuccessOf(const std::string& scenario, JobOptions options, const std::string& argument = "") {
  options.environment.insert({"BYTEPS_SLOT_BYTES", "64K"});
  Job job(options);
  job.StartWorkers(scenario, argument);
  job.ExpectSuccess(kPatience);
}

TEST(BriefTest, OppositeOrders) { ExpectSuccessOf("orders", {.workers = 3, .servers = 2}, "1"); }
TEST(BriefTest, Lives) { ExpectSuccessOf("lives", {.environment = {{"BYTEPS_JOB_LINGER", "10"}}}, "4"); }
TEST(BriefTest, Mismatches) { ExpectSuccessOf("mismatches", {.workers = 2, .servers = 2}); }
TEST(BriefTest, DeadlinesCancelsDuplicates) { ExpectSuccessOf("patience", {.workers = 2, .servers = 2}); }
TEST(BriefTest, TwoSessionsSideBySide) { ExpectSuccessOf("sessions", {.workers = 2, .servers = 1}); }

TEST(BriefTest, TensorsInBuffers) { ExpectSuccessOf("buffers_brief", {.workers = 2, .servers = 1}, "4"); }

// The memory of a worker that is killed stays where it is as long as a server has it mapped.
void KillAWorker(const std::string& scenario) {
  Job job({.workers = 3, .servers = 2});
  job.StartWorkers(scenario, "100000");
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", kPatience)) << job.Output();
  }
  job.worker(1).Signal(SIGKILL);
  for (int rank : {0, 2}) {
    EXPECT_EQ(job.worker(rank).Wait(kPatience), std::optional<int>(3)) << job.Output();
    EXPECT_NE(job.worker(rank).Output().find("worker rank 1"), std::string::npos) << job.Output();
  }
  for (int rank : {0, 1}) EXPECT_EQ(job.server(rank).Wait(kPatience), std::optional<int>(0)) << job.Output();
}

TEST(BriefTest, AKilledWorker) { KillAWorker("loop"); }
TEST(BriefTest, AKilledWorkerWithItsTensorInABuffer) { KillAWorker("loop_buffer"); }

}  // namespace
}  // namespace byteps
