// The plugins of examples/plugins, named by their paths, carry and order a whole job.

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "tests/e2e/job.h"

namespace byteps {
namespace {

std::string PathOf(const char* variable) { return std::filesystem::absolute(std::getenv(variable)).string(); }

TEST(ExamplePluginsTest, CarryAndOrderAJob) {
  Job job({.workers = 2,
           .servers = 2,
           .environment = {{"BYTEPS_TRANSPORT", PathOf("E2E_UNIX")},
                           {"BYTEPS_SCHEDULER", PathOf("E2E_SMALLEST_FIRST")},
                           {"BYTEPS_LOG_LEVEL", "info"}}});
  job.StartWorkers("sums");
  job.ExpectSuccess();
  EXPECT_NE(job.worker(0).Output().find("unix;"), std::string::npos) << job.Output();
  EXPECT_NE(job.worker(0).Output().find("scheduler smallest_first"), std::string::npos) << job.Output();
}

}  // namespace
}  // namespace byteps
