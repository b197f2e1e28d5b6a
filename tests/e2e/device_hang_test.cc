// Jobs of real processes in which a call of the device plugin never returns. Made by the library's own thread, on one
// rank, it ends the session on all of them, with an error that names the plugin and the call, long before the
// operation's time is up. Made by a thread of the program it holds that thread alone.
// E2E_ON_CUDA=1: by the CUDA plugin, on a driver and an NCCL whose GPUs are the fake ones.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

constexpr Time kPatience = 120 * kSecond;

std::string PathOf(const char* variable) { return std::filesystem::absolute(std::getenv(variable)).string(); }

bool OnCuda() { return std::string(std::getenv("E2E_ON_CUDA")) == "1"; }

JobOptions With(int workers, int servers) {
  JobOptions options;
  options.workers = workers;
  options.servers = servers;
  options.of_workers = {{"BYTEPS_DEVICE", PathOf(OnCuda() ? "E2E_CUDA" : "E2E_FAKE")},
                        {"BYTEPS_FAKE_GPU", "devices=2,seed=3,schedule=late"}};
  options.environment = {{"BYTEPS_OP_TIMEOUT", "600"}, {"BYTEPS_PEER_TIMEOUT", "12"}};
  if (OnCuda()) {
    options.of_workers["E2E_GPUS"] = PathOf("E2E_STANDIN_DRIVER");
    const std::filesystem::path nccl = PathOf("E2E_STANDIN_NCCL");
    options.of_workers["BYTEPS_NCCL_HOME"] = nccl.parent_path().parent_path().string();
  }
  return options;
}

void ExpectAllTold(Job* job, int workers) {
  for (int rank = 0; rank < workers; ++rank) {
    EXPECT_EQ(job->worker(rank).Wait(kPatience), std::optional<int>(0)) << "rank " << rank << ": " << job->Output();
  }
}

class HangTest : public testing::TestWithParam<const char*> {};

// By copies through pinned memory.
using OfCopies = HangTest;
TEST_P(OfCopies, EndsTheSessionOnEveryRank) {
  JobOptions options = With(2, 1);
  options.of_workers["BYTEPS_NCCL"] = "0";
  Job job(options);
  job.StartWorkers("hang", GetParam());
  ExpectAllTold(&job, 2);
}
INSTANTIATE_TEST_SUITE_P(All, OfCopies,
                         testing::Values("stream_create", "register_host", "event_query", "copy_to_host",
                                         "event_record", "copy_to_device", "stream_wait", "collective event_query",
                                         "collective copy_to_device"));

// Among the GPUs of a host.
using OfTheGpusOfAHost = HangTest;
TEST_P(OfTheGpusOfAHost, EndsTheSessionOnEveryRank) {
  if (OnCuda() && std::string(GetParam()) == "begin") GTEST_SKIP() << "ncclGroupStart does nothing by itself";
  Job job(With(2, 0));
  job.StartWorkers("hang", GetParam());
  ExpectAllTold(&job, 2);
}
INSTANTIATE_TEST_SUITE_P(All, OfTheGpusOfAHost, testing::Values("join", "state", "begin", "all_reduce", "end"));

// When the session gives back what it has of the GPU, nothing drives it any more.
using OfClose = HangTest;
TEST_P(OfClose, LeavesThatCallBehind) {
  Job job(With(2, 1));
  job.StartWorkers("hanging_close", GetParam());
  ExpectAllTold(&job, 2);
  EXPECT_NE(
      job.Output().find(std::string("has not returned from ") + GetParam() + ": the session is closed without it"),
      std::string::npos)
      << job.Output();
}
INSTANTIATE_TEST_SUITE_P(All, OfClose, testing::Values("unregister_host", "stream_destroy"));

// Nobody else notices: it has no other plugins.
TEST(DeviceHangTest, OfAWorkerAlone) {
  Job job(With(1, 0));
  job.StartWorkers("hang", "event_query");
  ExpectAllTold(&job, 1);
}

TEST(DeviceHangTest, OfACallerHoldsThatCallerAlone) {
  if (OnCuda()) GTEST_SKIP() << "the stand-in of the driver opens contexts under a lock that all its calls take";
  Job job(With(2, 1));
  job.StartWorkers("hanging_caller");
  job.ExpectSuccess(kPatience);
}

}  // namespace
}  // namespace byteps
