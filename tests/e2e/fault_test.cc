// Whole jobs in which a member dies, is missing or does not fit: every other member gets an error that names it, in
// time.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

// In the middle of large rounds.
constexpr char kElements[] = "4000000";

// Until a test gives up; nothing that works comes near it.
constexpr Time kPatience = 60 * kSecond;
// What is seen at once: no timeout, however short, would do. BYTEPS_PEER_TIMEOUT is 30 s.
constexpr Time kAtOnce = 10 * kSecond;

void ExpectNamed(Job* job, int rank, const std::string& who, Time within = kAtOnce) {
  EXPECT_EQ(job->worker(rank).Wait(within), std::optional<int>(3)) << job->Output();
  const std::string output = job->worker(rank).Output();
  EXPECT_NE(output.find("error 14"), std::string::npos) << output;
  EXPECT_NE(output.find(who), std::string::npos) << output;
}

TEST(FaultTest, AKilledWorkerIsNamedToAllOthers) {
  Job job({.workers = 3, .servers = 2});
  job.StartWorkers("loop", kElements);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", kPatience)) << job.Output();
  }
  job.worker(1).Signal(SIGKILL);
  const Time began = Now();
  ExpectNamed(&job, 0, "worker rank 1");
  ExpectNamed(&job, 2, "worker rank 1");
  EXPECT_LT(Now() - began, kAtOnce);
}

TEST(FaultTest, AKilledServerIsNamedToAllWorkers) {
  Job job({.workers = 2, .servers = 2});
  job.StartWorkers("loop", kElements);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", kPatience)) << job.Output();
  }
  job.server(1).Signal(SIGKILL);
  const Time began = Now();
  ExpectNamed(&job, 0, "server rank 1");
  ExpectNamed(&job, 1, "server rank 1");
  EXPECT_LT(Now() - began, kAtOnce);
}

TEST(FaultTest, AKilledCoordinatorEndsTheJob) {
  Job job({.workers = 2, .servers = 1});
  job.StartWorkers("loop", kElements);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", kPatience)) << job.Output();
  }
  job.coordinator().Signal(SIGKILL);
  ExpectNamed(&job, 0, "coordinator");
  ExpectNamed(&job, 1, "coordinator");
  EXPECT_TRUE(job.server(0).Wait(kPatience).has_value()) << "servers do not outlive the coordinator";
}

// SIGSTOP for longer than the timeout: the others say whom they miss (`who`; or `left`, the server, which has missed
// it first, said so, and ended); one that goes on after that comes back to nothing, and ends.
void ExpectStoppedIsNamed(const std::string& who, ChildProcess& (*victim)(Job*), const std::string& left = "",
                          int servers = 1) {
  constexpr Time kTimeout = 10 * kSecond;
  Job job({.workers = 2,
           .servers = servers,
           .environment = {{"BYTEPS_PEER_TIMEOUT", "10"}, {"BYTEPS_HEARTBEAT_INTERVAL", "1"}}});
  job.StartWorkers("loop", kElements);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("working", kPatience)) << job.Output();
  }
  ChildProcess& stopped = victim(&job);
  stopped.Signal(SIGSTOP);
  const Time began = Now();
  for (int rank = 0; rank < 2; ++rank) {
    if (&job.worker(rank) == &stopped) continue;
    EXPECT_EQ(job.worker(rank).Wait(began + kTimeout + kAtOnce - Now()), std::optional<int>(3)) << job.Output();
    const std::string output = job.worker(rank).Output();
    EXPECT_NE(output.find("error "), std::string::npos) << output;
    const bool named = output.find(who) != std::string::npos;
    EXPECT_TRUE(named || (!left.empty() && output.find(left) != std::string::npos)) << output;
    if (named || left.empty()) continue;
    ASSERT_TRUE(job.server(0).Wait(kPatience).has_value()) << job.Output();
    EXPECT_NE(job.server(0).Output().find(who), std::string::npos)
        << "the first lost role has not said which others it misses\n"
        << job.Output();
  }
  stopped.Signal(SIGCONT);
  std::vector<ChildProcess*> all = {&stopped, &job.worker(0), &job.worker(1), &job.coordinator()};
  for (int rank = 0; rank < servers; ++rank) all.push_back(&job.server(rank));
  for (ChildProcess* each : all) {
    EXPECT_TRUE(each->Wait(2 * kPatience).has_value()) << "a process stays behind\n" << job.Output();
  }
}

TEST(FaultTest, AStoppedWorkerIsNamed) {
  ExpectStoppedIsNamed("worker rank 1", [](Job* job) -> ChildProcess& { return job->worker(1); });
}

// No member but the other workers of the host waits for it.
TEST(FaultTest, AStoppedWorkerOfAJobWithoutServersIsNamed) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) != "1")
    GTEST_SKIP() << "workers reduce among themselves over shm only";
  ExpectStoppedIsNamed(
      "worker rank 1", [](Job* job) -> ChildProcess& { return job->worker(1); }, "", 0);
}

TEST(FaultTest, AStoppedServerIsNamed) {
  ExpectStoppedIsNamed("server rank 0", [](Job* job) -> ChildProcess& { return job->server(0); });
}

TEST(FaultTest, AStoppedCoordinatorIsNamed) {
  ExpectStoppedIsNamed(
      "coordinator", [](Job* job) -> ChildProcess& { return job->coordinator(); }, "server rank 0");
}

// What notices the loss first may be the next partition, which the transport does not take any more. The coordinator,
// which usually tells first, is kept from it.
TEST(FaultTest, AServerThatDiesUnheardOfIsNamed) {
  for (const char* loop : {"loop", "loop_buffer"}) {
    Job job({.workers = 2, .servers = 1});
    job.StartWorkers(loop, kElements);
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(job.worker(rank).WaitForOutput("working", kPatience)) << job.Output();
    }
    job.coordinator().Signal(SIGSTOP);
    job.server(0).Signal(SIGKILL);
    ExpectNamed(&job, 0, "server 0 (host ");
    ExpectNamed(&job, 1, "server 0 (host ");
    job.coordinator().Signal(SIGCONT);
    EXPECT_TRUE(job.coordinator().Wait(kPatience).has_value()) << job.Output();
  }
}

TEST(FaultTest, AWorkerThatClosesWithoutShutdownHasFailed) {
  Job job({.workers = 2, .servers = 1});
  job.StartWorker(0, "loop", "10");
  job.StartWorker(1, "vanish");
  ExpectNamed(&job, 0, "worker rank 1", kPatience);
}

TEST(FaultTest, AMissingWorkerIsNamedAtTheDeadline) {
  Job job({.workers = 2, .servers = 1, .of_workers = {{"BYTEPS_START_TIMEOUT", "5"}}});
  job.StartWorker(0, "open_fails");
  EXPECT_EQ(job.worker(0).Wait(kPatience), std::optional<int>(3)) << job.Output();
  const std::string output = job.worker(0).Output();
  EXPECT_NE(output.find("error 4"), std::string::npos) << output;
  EXPECT_NE(output.find("local rank 1"), std::string::npos) << output;
}

TEST(FaultTest, AMissingServerIsNamedAtTheDeadline) {
  Job job({.workers = 1, .servers = 1, .of_workers = {{"BYTEPS_START_TIMEOUT", "5"}}, .start_servers = false});
  job.StartWorker(0, "open_fails");
  EXPECT_EQ(job.worker(0).Wait(kPatience), std::optional<int>(3)) << job.Output();
  EXPECT_NE(job.worker(0).Output().find("server"), std::string::npos) << job.Output();
}

TEST(FaultTest, ServersMayComeLast) {
  Job job({.workers = 2, .servers = 1, .start_servers = false});
  job.StartWorkers("broadcasts");
  EXPECT_FALSE(job.worker(0).Wait(kSecond / 2).has_value()) << job.Output();
  job.StartServers();
  job.ExpectSuccess();
}

TEST(FaultTest, WithoutACoordinatorItsAddressIsNamed) {
  Job job({.workers = 1, .servers = 1, .of_workers = {{"BYTEPS_START_TIMEOUT", "6"}}});
  job.coordinator().Signal(SIGKILL);
  job.coordinator().Wait(kPatience);
  job.StartWorker(0, "open_fails");
  EXPECT_EQ(job.worker(0).Wait(kPatience), std::optional<int>(3)) << job.Output();
  EXPECT_NE(job.worker(0).Output().find("127.0.0.1:" + std::to_string(job.port())), std::string::npos) << job.Output();
}

// The system accepts connections for a process that does not run.
TEST(FaultTest, ACoordinatorThatDoesNotAnswerIsNamedAtTheDeadline) {
  Job job({.workers = 1, .servers = 1, .environment = {{"BYTEPS_START_TIMEOUT", "4"}}});
  job.coordinator().Signal(SIGSTOP);
  job.StartWorker(0, "open_fails");
  for (ChildProcess* each : {&job.worker(0), &job.server(0)}) {
    const std::optional<int> code = each->Wait(kPatience);
    EXPECT_TRUE(code.has_value() && *code != 0) << job.Output();
    for (const char* part : {"has not started within 4 s", "connected to 127.0.0.1:", "but it does not answer",
                             "or has it been stopped?"}) {
      EXPECT_NE(each->Output().find(part), std::string::npos) << each->Output();
    }
  }
}

TEST(FaultTest, AWrongTokenIsRefused) {
  Job job({.workers = 1, .servers = 1, .environment = {{"BYTEPS_JOB_TOKEN", "right"}}});
  job.StartWorker(0, "open_fails", "", {{"BYTEPS_JOB_TOKEN", "wrong"}});
  EXPECT_EQ(job.worker(0).Wait(kPatience), std::optional<int>(3)) << job.Output();
  EXPECT_NE(job.worker(0).Output().find("error 16"), std::string::npos) << job.Output();
}

// What is wrong with one worker, every member hears at once, whether it is a value that cannot be read or one that
// leads nowhere here.
TEST(FaultTest, AWorkerThatCannotTakePartIsNamedToAllOthers) {
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"BYTEPS_INLINE_BYTES", "many"}, {"DMLC_INTERFACE", "none7"}, {"BYTEPS_LOCAL_RANK", "7"}}) {
    SCOPED_TRACE(name);
    Job job({.workers = 3, .servers = 1, .environment = {{"PS_VERBOSE", "1"}}});
    job.StartWorker(0, "sums");
    ASSERT_TRUE(job.worker(0).WaitForOutput("registered as member", kPatience)) << job.Output();
    job.StartWorker(1, "sums", "", {{name, value}});
    for (int rank = 0; rank < 2; ++rank) {
      const std::optional<int> status = job.worker(rank).Wait(kPatience / 2);
      EXPECT_TRUE(status.has_value() && *status != 0) << job.Output();
      const std::string output = job.worker(rank).Output();
      for (const std::string& part :
           {std::string("worker host 0 local rank "), std::string("cannot take part: "), name, value}) {
        EXPECT_NE(output.find(part), std::string::npos) << part << " in\n" << output;
      }
    }
  }
}

TEST(FaultTest, AnotherNumberOfServersIsRefused) {
  Job job({.workers = 2, .servers = 1, .of_workers = {{"BYTEPS_START_TIMEOUT", "10"}}});
  job.StartWorker(0, "open_fails");
  job.StartWorker(1, "open_fails", "", {{"DMLC_NUM_SERVER", "2"}});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job.worker(rank).Wait(kPatience), std::optional<int>(3)) << job.Output();
  }
  EXPECT_NE(job.worker(1).Output().find("error 9"), std::string::npos) << job.Output();
  EXPECT_NE(job.worker(1).Output().find("DMLC_NUM_SERVER"), std::string::npos) << job.Output();
}

}  // namespace
}  // namespace byteps
