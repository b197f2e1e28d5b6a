// Jobs of real processes whose tensors lie in the memory of GPUs (fake ones): through servers over TCP and over shared
// memory, among the workers of a host, beside workers without a GPU; errors, cancels, a lost GPU, a dead worker.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

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
  Job job(With(3, 0));
  job.StartWorkers("sums");
  job.ExpectSuccess();
}

TEST(DeviceJobTest, HostsThatReduceAmongThemselvesFirst) {
  JobOptions options = With(3, 1);
  options.hosts = {2, 1};
  Job job(options);
  job.StartWorkers("sums");
  job.ExpectSuccess();
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
