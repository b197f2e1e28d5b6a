// Whole jobs whose members choose their transport: by themselves, by the variables of the original, or differently.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

constexpr Time kPatience = 60 * kSecond;

void ExpectSays(const std::string& output, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(output.find(part), std::string::npos) << part << " in\n" << output;
}

TEST(TransportChoice, ByItselfItTakesTheBestAndSaysSo) {
  Job job({.workers = 2, .servers = 2, .environment = {{"BYTEPS_LOG_LEVEL", "INFO"}}});
  job.StartWorkers("sums");
  job.ExpectSuccess(2 * kPatience);
  for (int rank = 0; rank < 2; ++rank) {
    ExpectSays(job.worker(rank).Output(), {"transport tcp, chosen by BYTEPS_TRANSPORT=auto: not efa (", "not verbs ("});
    ExpectSays(job.server(rank).Output(), {"transport tcp, chosen by BYTEPS_TRANSPORT=auto"});
  }
}

TEST(TransportChoice, TheVariableOfTheOriginalIsUnderstood) {
  Job job({.workers = 1, .servers = 1, .environment = {{"BYTEPS_LOG_LEVEL", "INFO"}, {"DMLC_ENABLE_RDMA", "zmq"}}});
  job.StartWorkers("sums");
  job.ExpectSuccess(2 * kPatience);
  ExpectSays(job.worker(0).Output(), {"transport tcp, as DMLC_ENABLE_RDMA=zmq asks"});

  // Where it was set the log has a word of it, also where it has nothing to say.
  Job local({.workers = 2, .servers = 0, .environment = {{"BYTEPS_LOG_LEVEL", "INFO"}, {"DMLC_ENABLE_RDMA", "1"}}});
  local.StartWorkers("sums");
  EXPECT_TRUE(local.worker(0).WaitForOutput("DMLC_ENABLE_RDMA=1 counts for nothing here", kPatience)) << local.Output();
}

void ExpectFails(ChildProcess* process) {
  const std::optional<int> status = process->Wait(kPatience);
  EXPECT_TRUE(status.has_value() && *status != 0) << process->Output();
}

// 192.0.2.0/24 is for documentation (RFC 5737).
TEST(TransportChoice, AnAddressOfNoInterfaceNamesTheVariable) {
  Job job({.workers = 1, .servers = 1, .environment = {{"BYTEPS_TRANSPORT", "tcp"}}});
  job.StartWorker(0, "sums", "", {{"DMLC_NODE_HOST", "192.0.2.77"}});
  ExpectFails(&job.worker(0));
  ExpectSays(job.worker(0).Output(),
             {"192.0.2.77", "no network interface of this host has that address", "DMLC_NODE_HOST"});
}

TEST(TransportChoice, WhatDoesNotExistIsAnErrorThatNamesWhatDoes) {
  Job job({.workers = 3, .servers = 1, .of_servers = {{"BYTEPS_TRANSPORT", "pigeon"}}});
  job.StartWorker(0, "sums", "", {{"DMLC_ENABLE_RDMA", "ucx"}});
  job.StartWorker(1, "sums", "", {{"BYTEPS_TRANSPORT", "pigeon"}});
  job.StartWorker(2, "sums", "", {{"DMLC_ENABLE_RDMA", "multivan"}});
  for (int rank = 0; rank < 3; ++rank) ExpectFails(&job.worker(rank));
  ExpectFails(&job.server(0));
  ExpectSays(job.worker(0).Output(), {"DMLC_ENABLE_RDMA=ucx", "BYTEPS_TRANSPORT=verbs", "auto"});
  for (ChildProcess* each : {&job.worker(1), &job.server(0)}) {
    ExpectSays(each->Output(), {"transport \"pigeon\" (from BYTEPS_TRANSPORT)", "Known here: ", "tcp"});
  }
  ExpectSays(job.worker(2).Output(), {"DMLC_ENABLE_RDMA=multivan", "BYTEPS_TRANSPORT=verbs", "auto"});
}

TEST(TransportChoice, APluginWithoutItsDeviceIsAnErrorOnEveryRole) {
  std::error_code none;
  if (std::filesystem::directory_iterator("/sys/class/infiniband", none) != std::filesystem::directory_iterator())
    GTEST_SKIP() << "this machine has RDMA devices";
  Job job({.workers = 2, .servers = 1, .of_servers = {{"BYTEPS_TRANSPORT", "verbs"}}});
  job.StartWorker(0, "sums", "", {{"BYTEPS_TRANSPORT", "verbs"}});
  job.StartWorker(1, "sums", "", {{"DMLC_ENABLE_RDMA", "ibverbs"}});
  const std::string why = "this host has no RDMA device (/sys/class/infiniband is empty)";
  for (int rank = 0; rank < 2; ++rank) ExpectFails(&job.worker(rank));
  ExpectFails(&job.server(0));
  for (ChildProcess* each : {&job.worker(0), &job.server(0)}) {
    ExpectSays(each->Output(), {"transport \"verbs\" (from BYTEPS_TRANSPORT)", why});
  }
  ExpectSays(job.worker(1).Output(),
             {"DMLC_ENABLE_RDMA=ibverbs asks for the transport verbs", why, "BYTEPS_TRANSPORT=auto"});
}

TEST(TransportChoice, MembersThatDifferAreToldWhoSaysWhat) {
  const std::string idle = std::filesystem::absolute(std::getenv("E2E_IDLE")).string();
  Job job({.workers = 3, .servers = 1, .environment = {{"PS_VERBOSE", "1"}}});
  for (int rank = 0; rank < 2; ++rank) {
    job.StartWorker(rank, "sums");
    ASSERT_TRUE(job.worker(rank).WaitForOutput("registered as member", kPatience)) << job.Output();
  }
  job.StartWorker(2, "sums", "", {{"BYTEPS_TRANSPORT", idle}});
  for (int rank = 0; rank < 3; ++rank) {
    const std::optional<int> status = job.worker(rank).Wait(kPatience);
    EXPECT_TRUE(status.has_value() && *status != 0) << job.Output();
    ExpectSays(job.worker(rank).Output(), {"the transport differs: idle (none) at worker host 0 local rank 2 (host ",
                                           "tcp (tcp) at ", "set BYTEPS_TRANSPORT to one value everywhere"});
  }
}

TEST(TransportChoice, WorkersWithoutServersThatDifferAreToldToo) {
  Job job({.workers = 2, .servers = 0, .environment = {{"BYTEPS_SHM", "1"}, {"BYTEPS_LOG_LEVEL", "INFO"}}});
  job.StartWorker(0, "sums", "", {{"BYTEPS_TRANSPORT", "tcp"}});
  ASSERT_TRUE(job.coordinator().WaitForOutput("member 1 is worker host 0 local rank 0", kPatience)) << job.Output();
  job.StartWorker(1, "sums", "", {{"BYTEPS_TRANSPORT", "shm"}});
  for (int rank = 0; rank < 2; ++rank) {
    ExpectFails(&job.worker(rank));
    ExpectSays(job.worker(rank).Output(),
               {"the transport differs: shm at worker host 0 local rank 1 (host ", "tcp at worker host 0 local rank 0",
                "set BYTEPS_TRANSPORT to one value everywhere"});
  }
  // No member of the job is a stranger in the coordinator's log.
  ASSERT_TRUE(job.coordinator().WaitForOutput("fails: the transport differs", kPatience)) << job.Output();
  EXPECT_EQ(job.coordinator().Output().find("turned away"), std::string::npos) << job.Output();
}

TEST(TransportChoice, WorkersWithoutServersThatAgreeOrDoNotCareWork) {
  Job job({.workers = 2, .servers = 0, .environment = {{"BYTEPS_SHM", "1"}}});
  job.StartWorker(0, "sums", "", {{"BYTEPS_TRANSPORT", "tcp"}});
  job.StartWorker(1, "sums");
  job.ExpectSuccess(2 * kPatience);
}

TEST(TransportChoice, AServerThatDiffersIsNamedToEveryWorker) {
  const std::string idle = std::filesystem::absolute(std::getenv("E2E_IDLE")).string();
  Job job({.workers = 2,
           .servers = 1,
           .environment = {{"PS_VERBOSE", "1"}},
           .of_servers = {{"BYTEPS_TRANSPORT", idle}},
           .start_servers = false});
  for (int rank = 0; rank < 2; ++rank) {
    job.StartWorker(rank, "sums");
    ASSERT_TRUE(job.worker(rank).WaitForOutput("registered as member", kPatience)) << job.Output();
  }
  job.StartServers();
  const std::vector<std::string> parts = {"the transport differs: idle (none) at server", "(host ",
                                          "tcp (tcp) at worker", "set BYTEPS_TRANSPORT to one value everywhere"};
  for (int rank = 0; rank < 2; ++rank) {
    ExpectFails(&job.worker(rank));
    ExpectSays(job.worker(rank).Output(), parts);
  }
  ExpectFails(&job.server(0));
  ExpectSays(job.server(0).Output(), parts);
}

// Each role as a user starts it, and one that differs. No member waits for the start timeout.
struct Odd {
  std::string role, transport;
};
class ByHand : public testing::TestWithParam<Odd> {};

TEST_P(ByHand, EveryRoleEndsWithOneErrorThatNamesBoth) {
  const auto& [odd, transport_of_odd] = GetParam();
  std::error_code none;
  if (transport_of_odd == "verbs" &&
      std::filesystem::directory_iterator("/sys/class/infiniband", none) != std::filesystem::directory_iterator())
    GTEST_SKIP() << "this machine has RDMA devices";
  using Variables = std::map<std::string, std::string>;
  const auto transport = [&](const std::string& role) {
    return Variables{{"BYTEPS_TRANSPORT", role == odd ? transport_of_odd : "tcp"}};
  };
  Job job({.workers = 2,
           .hosts = {1, 1},
           .servers = 2,
           .environment = {{"BYTEPS_START_TIMEOUT", "600"}, {"BYTEPS_LOG_LEVEL", "INFO"}},
           .by_hand = true});
  job.StartCoordinator(odd == "coordinator" ? transport("coordinator") : Variables{});
  ASSERT_TRUE(job.coordinator().WaitForOutput("listening at", kPatience)) << job.Output();
  // Two that wait, then two that come, of which one may be too late to be the first that is told.
  job.StartWorker(1, "sums", "", transport(""));
  job.StartServer(1, transport(""));
  if (odd != "coordinator") {
    ASSERT_TRUE(job.coordinator().WaitForOutput("member 2 is", kPatience)) << job.Output();
  }
  job.StartServer(0, transport("server"));
  job.StartWorker(0, "sums", "", transport("worker"));
  const std::string other = odd == "coordinator"        ? "shm at the coordinator (host "
                            : transport_of_odd == "shm" ? "shm (shm) at " + odd
                                                        : "verbs at " + odd;
  for (ChildProcess* each : {&job.worker(0), &job.worker(1), &job.server(0), &job.server(1), &job.coordinator()}) {
    ExpectFails(each);
    ExpectSays(each->Output(), {"the transport differs: ", other, "tcp (tcp) at ", "(host ", "pid ",
                                "set BYTEPS_TRANSPORT to one value everywhere"});
    if (transport_of_odd == "verbs") ExpectSays(each->Output(), {"verbs cannot be used there: ", "no RDMA device"});
    EXPECT_EQ(each->Output().find("turned away"), std::string::npos) << job.Output();
    EXPECT_EQ(each->Output().find("no session has started"), std::string::npos) << job.Output();
  }
}

INSTANTIATE_TEST_SUITE_P(TransportChoice, ByHand,
                         testing::Values(Odd{"worker", "shm"}, Odd{"server", "shm"}, Odd{"coordinator", "shm"},
                                         Odd{"worker", "verbs"}, Odd{"server", "verbs"}),
                         [](const auto& param) { return param.param.role + "_" + param.param.transport; });

}  // namespace
}  // namespace byteps
