// Whole jobs with a tensor of hundreds of megabytes and a short BYTEPS_PEER_TIMEOUT: what a tensor costs on the thread
// that also says that a worker is alive (pages, registrations, copies) is done in steps, and no worker is taken for
// dead. E2E_LARGE_MB and E2E_PEER_TIMEOUT ask for another size and another timeout: two workers need 2 x that size
// each.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <regex>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

constexpr Time kPatience = 600 * kSecond;

std::string Variable(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

// Ends well. What the longest step of each worker took is told, and was no more than a silence that others bear.
void RunJob(int servers, const std::map<std::string, std::string>& of_workers) {
  const std::string peer_timeout = Variable("E2E_PEER_TIMEOUT", "5");  // seconds
  Job job({.workers = 2,
           .servers = servers,
           .environment = {{"BYTEPS_PEER_TIMEOUT", peer_timeout}, {"BYTEPS_LOG_LEVEL", "INFO"}},
           .of_workers = of_workers});
  job.StartWorkers("large", Variable("E2E_LARGE_MB", "384"));
  job.ExpectSuccess(kPatience);
  static const std::regex line("the longest step of this session's thread took ([0-9]+) us");
  for (int rank = 0; rank < 2; ++rank) {
    const std::string output = job.worker(rank).Output();
    std::smatch found;
    ASSERT_TRUE(std::regex_search(output, found, line)) << output;
    std::printf("rank %d: %s us\n", rank, found[1].str().c_str());
    EXPECT_LT(std::stoll(found[1]), std::stoll(peer_timeout) * 1'000'000);
  }
}

TEST(LargeTest, AmongTheWorkersOfAHost) { RunJob(0, {}); }

TEST(LargeTest, AmongWorkersThatDoNotReadEachOthersMemory) { RunJob(0, {{"BYTEPS_SHM_PROCESS_VM", "0"}}); }

TEST(LargeTest, ThroughAServerOfTheHost) { RunJob(1, {{"BYTEPS_FORCE_DISTRIBUTED", "1"}}); }

TEST(LargeTest, ThroughAServerByTcp) { RunJob(1, {{"BYTEPS_FORCE_DISTRIBUTED", "1"}, {"BYTEPS_SHM", "0"}}); }

}  // namespace
}  // namespace byteps
