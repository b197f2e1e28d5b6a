// Ranks that disagree, give up or do not come: an error on every rank that says who and what, and the session goes on.

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/exchanges.h"
#include "tests/sim/expect_mismatch.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

void ExpectMismatches(uint64_t seeds, size_t elements, const std::function<void(Ask*)>& twist, const Words& words) {
  ForEachSeed(seeds, [&](uint64_t seed) {
    const auto all = [&](uint32_t odd) {
      Words each = words;
      each.push_back("rank " + std::to_string(odd) + " (worker");
      return each;
    };
    ExpectMismatch({.seed = seed, .workers = 3, .servers = 2, .lanes = 2}, FloatAsk("weights", elements), twist, all);
  });
}

TEST(Mismatch, OfShapesIsAnErrorOnEveryRank) {
  ExpectMismatches(60, 10'000,
                   [](Ask* ask) {
                     ask->shape = {100, 50};
                     ask->input.resize(5000 * 4);
                   },
                   {"float32, 10000", "float32, 100x50"});
}

TEST(Mismatch, OfShapesWithEqualSizesIsAnErrorOnEveryRank) {
  ExpectMismatches(40, 10'000, [](Ask* ask) { ask->shape = {100, 100}; }, {"float32, 10000", "float32, 100x100"});
}

TEST(Mismatch, OfOneElementAmongMany) {
  ExpectMismatches(20, 400'000,
                   [](Ask* ask) {
                     ask->shape = {400'001};
                     ask->input.resize(400'001 * 4);
                   },
                   {"float32, 400000", "float32, 400001"});
}

TEST(Mismatch, OfDataTypesIsAnErrorOnEveryRank) {
  ExpectMismatches(60, 10'000, [](Ask* ask) { ask->dtype = BPS_INT32; }, {"of float32, 10000", "of int32, 10000"});
}

TEST(Mismatch, OfReductionsIsAnErrorOnEveryRank) {
  ExpectMismatches(60, 10'000, [](Ask* ask) { ask->reduction = BPS_MAX; },
                   {"push_pull (sum) of", "push_pull (max) of"});
}

TEST(Mismatch, OfSmallTensorsIsAnErrorOnEveryRank) {
  ExpectMismatches(60, 10, [](Ask* ask) { ask->reduction = BPS_MAX; }, {"push_pull (sum) of", "push_pull (max) of"});
}

TEST(Mismatch, OfPushPullAndBroadcastIsAnErrorOnEveryRank) {
  ExpectMismatches(60, 10'000, [](Ask* ask) { ask->kind = wire::Operation::kBroadcast; },
                   {"broadcast from rank", "push_pull (sum) of"});
}

TEST(Mismatch, OfNumbersIsAnErrorOnEveryRank) {
  for (const size_t elements : {10, 10'000}) {
    ExpectMismatches(40, elements, [](Ask* ask) { ask->match = 7; }, {"scaling or number"});
  }
}

TEST(Mismatch, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job({.seed = seed, .workers = 3, .servers = 2});
    ASSERT_TRUE(job.Start());
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < 2; ++w) {
      Ask ask = FloatAsk("weights", 5000);
      ask.timeout = 2 * kSecond;
      calls.push_back(job.worker(w).Submit(ask));
    }
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntilEnded(calls, 10 * kSecond));
    EXPECT_LE(job.fabric().now() - begin, 5 * kSecond);
    for (const Call* call : calls) {
      EXPECT_EQ(call->outcome().code(), absl::StatusCode::kDeadlineExceeded) << call->outcome();
      EXPECT_THAT(std::string(call->outcome().message()), HasSubstr("2")) << "names the rank";
    }
    // It comes too late, and meets the failed round.
    Call* late = job.worker(2).Submit(FloatAsk("weights", 5000));
    ASSERT_NE(late, nullptr);
    ASSERT_TRUE(job.RunUntil([&] { return late->ended(); }));
    EXPECT_FALSE(late->ok());
    ExpectGoesOn(&job, "weights");
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Mismatch, ACancelEndsTheRoundForAll) {
  ForEachSeed(80, [](uint64_t seed) {
    SimulatedJob job({.seed = seed, .workers = 3, .servers = 2});
    ASSERT_TRUE(job.Start());
    const bool all = job.fabric().random().Chance(0.5);
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < (all ? 3 : 2); ++w) calls.push_back(job.worker(w).Submit(FloatAsk("weights", 20'000)));
    job.RunFor(job.fabric().random().Between(0, 20) * kMillisecond / 4);
    job.worker(1).Cancel(calls[1]);
    if (!all) {
      job.RunFor(job.fabric().random().Between(0, 20) * kMillisecond);
      calls.push_back(job.worker(2).Submit(FloatAsk("weights", 20'000)));
    }
    ASSERT_TRUE(job.RunUntilEnded(calls));
    // All members have it, or none: but a member that had the result before the cancel came keeps it.
    EXPECT_TRUE(calls[1]->ok() || calls[1]->outcome().code() == absl::StatusCode::kCancelled) << calls[1]->outcome();
    for (const uint32_t w : {0u, 2u}) {
      EXPECT_TRUE(calls[w]->ok() || calls[w]->outcome().code() == absl::StatusCode::kAborted) << calls[w]->outcome();
      if (!calls[w]->ok()) {
        EXPECT_THAT(std::string(calls[w]->outcome().message()), HasSubstr("1")) << "names the rank";
      }
      if (calls[1]->ok()) {
        EXPECT_TRUE(calls[w]->ok()) << calls[w]->outcome();
      }
    }
    ExpectGoesOn(&job, "weights");
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

}  // namespace
}  // namespace byteps
