// A bit of a tensor changes on its way through TCP, unseen by all members: with BYTEPS_CHECKSUM=1 the round fails by
// name, on every member where the server finds it, and the job goes on.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include "tests/e2e/job.h"

namespace byteps {
namespace {

// Sent by each in a round.
constexpr size_t kTensor = 1'200'000;

// Alters one byte of what a process sends.
std::map<std::string, std::string> Altered(uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t at = kTensor + random() % kTensor;
  return {{"LD_PRELOAD", std::filesystem::absolute(std::getenv("E2E_ALTERED")).string()},
          {"ALTERED_STREAMS", std::to_string(at) + " " + std::to_string(1u << random() % 8)}};
}

JobOptions Options(const char* checksum) {
  JobOptions options{.workers = 2, .servers = 1};
  options.environment = {
      {"BYTEPS_CHECKSUM", checksum}, {"BYTEPS_PARTITION_BYTES", "256K"}, {"BYTEPS_TRANSPORT", "tcp"}};
  return options;
}

bool Contains(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

class Flips : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, Flips, testing::Range<uint64_t>(0, 4));

TEST_P(Flips, OfAContributionAreFoundByTheServer) {
  Job job(Options("1"));
  job.StartWorker(0, "altered");
  job.StartWorker(1, "altered", "", Altered(GetParam()));
  job.ExpectSuccess(120 * kSecond);
  for (const int rank : {0, 1}) {
    const std::string output = job.worker(rank).Output();
    EXPECT_TRUE(Contains(output, "error 15: ")) << job.Output();
    for (const char* word : {"came altered to the server", "rank 1 (worker", "part ", "BYTEPS_CHECKSUM"}) {
      EXPECT_TRUE(Contains(output, word)) << word << " is not in\n" << job.Output();
    }
  }
}

TEST_P(Flips, OfAResultAreFoundByTheWorkerThatGetsIt) {
  JobOptions options = Options("1");
  options.of_servers = Altered(GetParam());
  Job job(options);
  job.StartWorkers("altered");
  job.ExpectSuccess(120 * kSecond);
  const std::string both = job.worker(0).Output() + job.worker(1).Output();
  EXPECT_TRUE(Contains(both, "error 15: ")) << job.Output();
  for (const char* word : {"came altered from", "server", "part ", "BYTEPS_CHECKSUM"}) {
    EXPECT_TRUE(Contains(both, word)) << word << " is not in\n" << job.Output();
  }
}

// That a byte is altered at all: nothing else notices.
TEST(FlipsTest, WithoutAChecksumTheSumIsWrong) {
  Job job(Options("0"));
  job.StartWorker(0, "altered");
  job.StartWorker(1, "altered", "", Altered(0));
  bool wrong = false;
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(job.worker(rank).Wait(120 * kSecond).has_value()) << job.Output();
    wrong |= Contains(job.worker(rank).Output(), "FAILED: ");
  }
  EXPECT_TRUE(wrong) << job.Output();
}

}  // namespace
}  // namespace byteps
