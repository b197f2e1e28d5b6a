// Jobs of real processes whose tensors lie in the memory of GPUs (fake ones): through servers over TCP and over shared
// memory, among the workers of a host, beside workers without a GPU; errors, cancels, a lost GPU, a dead worker.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

JobOptions With(int workers, int servers, const std::string& schedule = "late") {
  JobOptions options;
  options.workers = workers;
  options.servers = servers;
  options.of_workers = {{"BYTEPS_DEVICE", std::filesystem::absolute(std::getenv("E2E_FAKE")).string()},
                        {"BYTEPS_FAKE_GPU", "devices=2,seed=3,schedule=" + schedule}};
  return options;
}

TEST(DeviceJobTest, SumsAndBroadcastsThroughServers) {
  for (const char* schedule : {"late", "early", "random"}) {
    Job job(With(2, 2, schedule));
    job.StartWorkers("sums");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, AWorkerAlone) {
  Job job(With(1, 0));
  job.StartWorkers("sums");
  EXPECT_EQ(job.worker(0).Wait(40 * kSecond), std::optional<int>(0)) << job.Output();
}

TEST(DeviceJobTest, AmongTheWorkersOfAHost) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  JobOptions options = With(3, 0);
  options.of_workers["BYTEPS_NCCL"] = "0";
  Job job(options);
  job.StartWorkers("sums");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, HostsThatReduceAmongThemselvesFirst) {
  JobOptions options = With(3, 1);
  options.hosts = {2, 1};
  options.of_workers["BYTEPS_NCCL"] = "0";
  Job job(options);
  job.StartWorkers("sums");
  job.ExpectSuccess();
}

// The GPUs of a host reduce among themselves: what reaches the host's memory is each one's share, or nothing.
TEST(DeviceJobTest, TheGpusOfAHostAlone) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [workers, schedule] : {std::pair(2, "late"), std::pair(4, "early"), std::pair(3, "random")}) {
    JobOptions options = With(workers, 0, schedule);
    options.of_workers["E2E_GROUP"] = "alone";
    Job job(options);
    job.StartWorkers("group");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, TheGpusOfTwoHosts) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [hosts, schedule, variable] :
       {std::tuple(std::vector<int>{2, 2}, "late", ""), std::tuple(std::vector<int>{3, 1}, "random", ""),
        std::tuple(std::vector<int>{2, 2}, "early", "BYTEPS_NCCL_NUM_RINGS"),
        std::tuple(std::vector<int>{2, 2}, "late", "BYTEPS_REDUCE_ROOTS")}) {
    JobOptions options = With(4, 2, schedule);
    options.hosts = hosts;
    options.of_workers["E2E_GROUP"] = "hosts";
    options.of_workers["BYTEPS_PARTITION_BYTES"] = "65536";
    if (std::string(variable) == "BYTEPS_REDUCE_ROOTS") options.of_workers["E2E_GROUP"] = "roots";
    if (*variable != '\0') options.of_workers[variable] = std::string(variable) == "BYTEPS_REDUCE_ROOTS" ? "1" : "3";
    Job job(options);
    job.StartWorkers("group");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, TheGpusOfAHostReduceEveryDataType) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [hosts, servers] : {std::pair(std::vector<int>(), 0), std::pair(std::vector<int>{2, 1}, 1)}) {
    JobOptions options = With(3, servers);
    options.hosts = hosts;
    options.of_workers["BYTEPS_PARTITION_BYTES"] = "16384";
    Job job(options);
    job.StartWorkers("dtypes");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, AWorkerThatDiesAmongTheGpusOfAHostIsNamed) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [hosts, servers, schedule] :
       {std::tuple(std::vector<int>(), 0, "late"), std::tuple(std::vector<int>{2, 1}, 1, "random"),
        std::tuple(std::vector<int>{1, 2}, 2, "early")}) {
    JobOptions options = With(3, servers, schedule);
    options.hosts = hosts;
    Job job(options);
    job.StartWorkers("killed");
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(job.worker(rank).WaitForOutput("turning", 120 * kSecond)) << job.Output();
    }
    job.worker(1).Signal(SIGKILL);
    for (const int rank : {0, 2}) {
      EXPECT_EQ(job.worker(rank).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
    }
  }
}

TEST(DeviceJobTest, NotAmongTheGpusIfSomebodySaysNo) {
  if (std::string(std::getenv("E2E_BYTEPS_SHM")) == "0") GTEST_SKIP() << "they need shared memory";
  for (const auto& [name, value] :
       {std::pair("BYTEPS_NCCL", "0"), std::pair("BYTEPS_DETERMINISTIC", "1"), std::pair("E2E_CPU_RANK", "1")}) {
    JobOptions options = With(3, 0);
    options.of_workers["E2E_GROUP"] = "host memory";
    options.of_workers[name] = value;
    Job job(options);
    job.StartWorkers("group");
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, BesideAWorkerWithoutAGpu) {
  JobOptions options = With(3, 1);
  options.of_workers["E2E_CPU_RANK"] = "1";
  Job job(options);
  job.StartWorkers("sums");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, WhatCallersGetWrong) {
  Job job(With(2, 1));
  job.StartWorkers("errors");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, NoPluginAndNoDriver) {
  for (const auto& [device, text] : std::map<std::string, std::string>{
           {"absent", "device \"absent\" (from BYTEPS_DEVICE) could not be found"},
           {std::filesystem::absolute(std::getenv("E2E_CUDA")).string(), "NVIDIA driver"}}) {
    JobOptions options = With(2, 1);
    options.of_workers = {{"BYTEPS_DEVICE", device}, {"CUDA_VISIBLE_DEVICES", ""}};
    Job job(options);
    job.StartWorkers("missing", text);
    job.ExpectSuccess();
  }
}

TEST(DeviceJobTest, ACancelIsHeardByAll) {
  Job job(With(2, 1));
  job.StartWorkers("cancel");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, ALostGpuIsHeardByAll) {
  Job job(With(2, 1));
  job.StartWorkers("lost");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, ADeadWorkerIsNamed) {
  Job job(With(3, 1));
  job.StartWorkers("death");
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(job.worker(rank).WaitForOutput("waiting", 120 * kSecond)) << job.Output();
  }
  job.worker(1).Signal(SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(job.worker(rank).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
  }
}

}  // namespace
}  // namespace byteps
