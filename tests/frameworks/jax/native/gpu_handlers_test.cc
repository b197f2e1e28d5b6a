// Jobs of two processes whose programs "run" on GPUs: the handlers for the platform CUDA, called as XLA calls them
// (gpu_worker.cc), with the CUDA plugin on a driver whose GPUs are simulated. Those report every access that no stream
// orders. No XLA and no GPU are in these tests.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

std::string PathOf(const char* variable) { return std::filesystem::absolute(std::getenv(variable)).string(); }

JobOptions With(int servers, const std::string& schedule) {
  JobOptions options;
  options.workers = 2;
  options.servers = servers;
  const std::filesystem::path driver = PathOf("E2E_STANDIN_DRIVER");
  options.of_workers = {{"BYTEPS_DEVICE", PathOf("E2E_CUDA")},
                        {"BYTEPS_FAKE_GPU", "devices=2,seed=3,schedule=" + schedule},
                        {"BYTEPS_NCCL", "0"},
                        {"E2E_GPUS", driver.string()},
                        {"JAX_SHIM", PathOf("JAX_SHIM")},
                        {"LD_LIBRARY_PATH", driver.parent_path().string()}};
  return options;
}

void RunScenario(const char* scenario, int servers, const std::string& schedule) {
  Job job(With(servers, schedule));
  job.StartWorkers(scenario);
  job.ExpectSuccess(200 * kSecond);
}

TEST(GpuHandlersTest, SumsAndBroadcastsInTheOrderOfTheStream) {
  for (const char* schedule : {"late", "early", "random"}) RunScenario("sums", 1, schedule);
}

TEST(GpuHandlersTest, AmongTheWorkersOfAHost) { RunScenario("sums", 0, "late"); }

TEST(GpuHandlersTest, CollectivesInTheOrderOfTheStream) {
  for (const char* schedule : {"late", "early", "random"}) RunScenario("collectives", 1, schedule);
}

TEST(GpuHandlersTest, CollectivesAmongTheWorkersOfAHost) { RunScenario("collectives", 0, "late"); }

TEST(GpuHandlersTest, ReadsOperandsOnTheGpu) { RunScenario("operands", 1, "late"); }

TEST(GpuHandlersTest, ErrorsAreXlasWithTheLibrarysWords) { RunScenario("errors", 1, "late"); }

TEST(GpuHandlersTest, TwoGpusInAProcess) { RunScenario("second", 1, "random"); }

TEST(GpuHandlersTest, AWorkerThatDiesIsNamed) {
  Job job(With(1, "late"));
  job.StartWorkers("death");
  ASSERT_TRUE(job.worker(0).WaitForOutput("waiting", 120 * kSecond)) << job.Output();
  job.worker(1).Signal(SIGKILL);
  EXPECT_EQ(job.worker(0).Wait(120 * kSecond), std::optional<int>(0)) << job.Output();
}

}  // namespace
}  // namespace byteps
