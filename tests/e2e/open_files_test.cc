// Whole jobs over TCP whose workers or servers may have few open files: they work, or end soon with an error that says
// so.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

// Until a test gives up.
constexpr Time kPatience = 60 * kSecond;
// No timeout of a job is as short.
constexpr Time kAtOnce = 10 * kSecond;

// Which resource is the first that there is not, depends on the number.
void ExpectWordsFromFewToEnough(bool servers) {
  int failed = 0, succeeded = 0;
  for (int files = 10; files <= 40; files += files < 20 ? 1 : 10) {
    SCOPED_TRACE("open files: " + std::to_string(files));
    const std::string how = "files=" + std::to_string(files);
    Job job({.workers = 2,
             .servers = 1,
             .environment = {{"BYTEPS_SERVER_ENGINE_THREAD", "1"}},
             .hindered_servers = servers ? how : "",
             .hindered_workers = servers ? "" : how});
    const Time began = Now();
    job.StartWorkers("sums");
    bool good = true;
    for (int rank = 0; rank < 2; ++rank) {
      const std::optional<int> code = job.worker(rank).Wait(kPatience);
      ASSERT_TRUE(code.has_value()) << job.Output();
      good = good && *code == 0;
    }
    if (good) {
      ++succeeded;
      continue;
    }
    ++failed;
    EXPECT_LT(Now() - began, kAtOnce) << job.Output();
    for (int rank = 0; rank < 2; ++rank) {
      const std::string output = job.worker(rank).Output();
      EXPECT_NE(output.find("ulimit -n"), std::string::npos) << job.Output();
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(succeeded, 0);
}

// One worker has too few: the other one, and the server, hear it too, and that it is not theirs.
TEST(OpenFilesTest, OfOneWorkerIsToldToTheOthers) {
  int failed = 0;
  for (int files = 12; files <= 24; files += 2) {
    SCOPED_TRACE("open files: " + std::to_string(files));
    Job job({.workers = 2, .servers = 1, .environment = {{"BYTEPS_SERVER_ENGINE_THREAD", "1"}}});
    const Time began = Now();
    job.StartWorker(0, "sums");
    job.StartWorker(1, "few_files", std::to_string(files));
    const std::optional<int> code = job.worker(0).Wait(kPatience);
    ASSERT_TRUE(code.has_value()) << job.Output();
    ASSERT_TRUE(job.worker(1).Wait(kPatience).has_value()) << job.Output();
    if (*code == 0) continue;
    ++failed;
    EXPECT_LT(Now() - began, kAtOnce) << job.Output();
    const std::string output = job.worker(0).Output();
    EXPECT_NE(output.find("ulimit -n"), std::string::npos) << job.Output();
    EXPECT_EQ(output.find("this process"), std::string::npos) << output;
  }
  EXPECT_GT(failed, 0);
}

TEST(OpenFilesTest, OfWorkers) { ExpectWordsFromFewToEnough(false); }

TEST(OpenFilesTest, OfServers) { ExpectWordsFromFewToEnough(true); }

}  // namespace
}  // namespace byteps
