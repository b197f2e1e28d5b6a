// Whole jobs in which a rank does not submit what the others wait for, under the variables of Horovod.
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <optional>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr Time kPatience = 90 * kSecond;
constexpr char kStall[] = "stall: push_pull (sum) of \"late\"";

// A job whose rank 1 stands still before it submits.
Job Start(const Variables& variables) { return Job({.workers = 2, .servers = 0, .environment = variables}); }

// Rank 0 gives the operation up, with the rank that is missing. The other goes on then, and ends, too.
void ExpectGivenUp(Job* job) {
  EXPECT_EQ(job->worker(0).Wait(kPatience), std::optional<int>(1)) << job->Output();
  job->worker(1).Signal(SIGCONT);
  EXPECT_TRUE(job->worker(1).Wait(kPatience).has_value()) << job->Output();
  const std::string said = job->worker(0).Output();
  EXPECT_NE(said.find("not complete within 4 s"), std::string::npos) << said;
  EXPECT_NE(said.find("not submitted by rank 1"), std::string::npos) << said;
}

TEST(HorovodStallTest, TheTimeOfTheCheckIsTheTimeOfTheWarning) {
  Job job = Start({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "1"}});
  job.StartWorkers("stall");
  EXPECT_TRUE(job.worker(0).WaitForOutput(kStall, kPatience)) << job.Output();
  job.worker(1).Signal(SIGCONT);
  job.ExpectSuccess(kPatience);
}

TEST(HorovodStallTest, TheTimeOfTheShutdownEndsTheOperation) {
  Job job = Start({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "1"}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "4"}});
  job.StartWorkers("stall");
  ExpectGivenUp(&job);
  EXPECT_NE(job.worker(0).Output().find(kStall), std::string::npos) << job.Output();
}

TEST(HorovodStallTest, TheSwitchTakesTheWarningAway) {
  Job job = Start({{"HOROVOD_STALL_CHECK_DISABLE", "1"},
                   {"HOROVOD_STALL_CHECK_TIME_SECONDS", "1"},
                   {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "4"}});
  job.StartWorkers("stall");
  ExpectGivenUp(&job);
  EXPECT_EQ(job.worker(0).Output().find("stall: "), std::string::npos) << job.Output();
}

}  // namespace
}  // namespace byteps
