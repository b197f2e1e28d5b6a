// Two copies of libbyteps.so in one process, which share the files of their plugins, and copies that are unloaded while
// their code is still needed: sessions have threads in it, plugins hold the host table of the copy that loaded them
// last.

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "tests/e2e/job.h"

namespace byteps {
namespace {

// The library, and a copy of its file.
std::string TwoCopies() {
  const std::filesystem::path first = std::filesystem::absolute(std::getenv("E2E_LIBRARY"));
  const std::filesystem::path second = std::filesystem::path(testing::TempDir()) / "second_copy.so";
  std::filesystem::copy_file(first, second, std::filesystem::copy_options::overwrite_existing);
  return first.string() + "," + second.string();
}

TEST(CopiesTest, PluginsOutliveTheCopyThatLoadedThemLast) {
  Job job({.workers = 1,
           .servers = 1,
           .of_workers = {{"BYTEPS_SCHEDULER", std::filesystem::absolute(std::getenv("E2E_CHATTY")).string()}}});
  job.StartWorkers("second_unloaded", TwoCopies());
  job.ExpectSuccess();
}

TEST(CopiesTest, UnloadingWithSessionsOpenDisturbsNoMember) {
  Job job({.workers = 1, .servers = 1});
  job.StartWorkers("unloaded_open", TwoCopies());
  job.ExpectSuccess();
}

}  // namespace
}  // namespace byteps
