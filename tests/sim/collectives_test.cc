// Collectives among workers, on the simulated network: random programs against what they must bring, and their ends.

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/collective_program.h"
#include "tests/sim/gather.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

using ::testing::HasSubstr;

JobOptions OptionsOf(uint64_t seed) {
  constexpr uint32_t kWorkers[] = {2, 3, 4, 7};
  JobOptions options;
  options.seed = seed;
  options.workers = kWorkers[seed % std::size(kWorkers)];
  return options;
}

TEST(Collectives, RandomProgramsBringWhatTheyMust) {
  ForEachSeed(2000, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    CollectiveProgram program(&job, seed);
    for (int i = 0; i < 5; ++i) {
      program.Run(1 + seed % 12, 3000);
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.Finish();
  });
}

TEST(Collectives, LargeTensorsInChunks) {
  ForEachSeed(40, [](uint64_t seed) {
    JobOptions options = OptionsOf(seed);
    options.peer_timeout = 60 * kSecond;  // words wait behind megabytes on links of a megabyte per second
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    CollectiveProgram(&job, seed).Run(6, 1'000'000);
    job.Finish();
  });
}

TEST(Collectives, ADeadlineNamesWhoDidNotSubmitAndTheNextRoundWorks) {
  ForEachSeed(40, [](uint64_t seed) {
    JobOptions options = OptionsOf(seed);
    options.workers = 3;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    Gather first("g", 3, 1000, 2 * kSecond), second("g", 3, 1000, 2 * kSecond), late("g", 3, 1000);
    ASSERT_TRUE(job.worker(0).Collect(first.asked()).ok());
    ASSERT_TRUE(job.worker(1).Collect(second.asked()).ok());
    ASSERT_TRUE(job.RunUntil([&] { return first.request().ended() && second.request().ended(); }));
    for (const Gather* each : {&first, &second}) {
      EXPECT_EQ(each->request().outcome().code(), absl::StatusCode::kDeadlineExceeded) << each->request().outcome();
      EXPECT_THAT(std::string(each->request().outcome().message()), HasSubstr("not submitted by rank 2"));
    }
    // The third comes late, and hears why.
    ASSERT_TRUE(job.worker(2).Collect(late.asked()).ok());
    ASSERT_TRUE(job.RunUntil([&] { return late.request().ended(); }));
    EXPECT_THAT(std::string(late.request().outcome().message()), HasSubstr("gave up"));
    std::vector<std::unique_ptr<Gather>> next;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      next.push_back(std::make_unique<Gather>("g", 3, 1000));
      ASSERT_TRUE(job.worker(rank).Collect(next.back()->asked()).ok());
    }
    ASSERT_TRUE(job.RunUntil(
        [&] { return next[0]->request().ended() && next[1]->request().ended() && next[2]->request().ended(); }));
    for (const auto& each : next) EXPECT_TRUE(each->request().outcome().ok()) << each->request().outcome();
    job.Finish();
  });
}

}  // namespace
}  // namespace byteps
