// The workers of one host reduce among themselves: no server takes part, or there is none.

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

using ::testing::HasSubstr;

// One that travels with its offer, and one that is read where it is.
const std::vector<size_t> kSizes = {3, 3000};

// `workers` of one host; with servers or without, which must make no difference.
JobOptions HostOptions(uint64_t seed, uint32_t workers) {
  JobOptions options;
  options.seed = seed;
  options.workers = options.workers_per_host = workers;
  options.servers = seed % 3 == 0 ? 2 : 0;
  options.local = true;
  return options;
}

TEST(Local, SumsAreTheRankOrderFoldWhateverTheNetworkAndTheOrder) {
  ForEachSeed(200, [](uint64_t seed) {
    sim::Random random(seed);
    JobOptions options = HostOptions(seed, static_cast<uint32_t>(random.Between(2, 5)));
    options.inline_bytes = random.Chance(0.3) ? 0 : 1024;
    options.copy_refused = random.Chance(0.3);
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    EXPECT_EQ(job.worker(0).engine().DescribeStages(), "local");
    for (int round = 0; round < 2; ++round) {
      const size_t sizes[] = {0, 1, 3, 15, 17, 256, 257, 1000, 5000, 100'000};
      Exchanges exchanges(&job);
      for (const size_t size : sizes) {
        exchanges.Sum("t" + std::to_string(size), size);
        if (random.Chance(0.3)) job.RunFor(random.Between(0, 2000) * 1000);
      }
      exchanges.Check();
    }
    job.Finish();
  });
}

// Groups within a host belong to the definition of the result here too.
TEST(Local, EveryDataTypeAndOperationWithGroups) {
  ForEachSeed(60, [](uint64_t seed) {
    JobOptions options = HostOptions(seed, 4);
    const bool grouped = seed % 2 == 0;
    options.groups = grouped ? "0-1,2-3" : "host";
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const std::vector<uint32_t> groups = grouped ? std::vector<uint32_t>{2, 2} : std::vector<uint32_t>{4};
    Exchanges exchanges(&job);
    exchanges.EveryDataTypeAndReduction({seed % 4 < 2 ? 700 : 20}, groups);
    exchanges.Check();
    job.Finish();
  });
}

TEST(Local, ABroadcastIsTheRootsInput) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job(HostOptions(seed, 3));
    ASSERT_TRUE(job.Start());
    Exchanges exchanges(&job);
    exchanges.Broadcasts({0, 1, 100'000});
    exchanges.Check();
    job.Finish();
  });
}

void ExpectMismatches(size_t elements, const std::function<void(Ask*)>& twist, const Words& words) {
  ForEachSeed(60, [&](uint64_t seed) {
    const auto all = [&](uint32_t odd) {
      Words each = words;
      each.push_back("the ranks disagree: rank 0");
      each.push_back("rank " + std::to_string(odd == 0 ? 2 : odd));
      return each;
    };
    ExpectMismatch(HostOptions(seed, 3), FloatAsk("weights", elements), twist, all, kSizes);
  });
}

TEST(Local, AMismatchOfShapesIsAnErrorOnEveryRank) {
  ExpectMismatches(10'000,
                   [](Ask* ask) {
                     ask->shape = {5, 2};
                     ask->input.resize(40);
                   },
                   {"float32, 10000", "float32, 5x2"});
}

TEST(Local, AMismatchOfShapesOfOneSizeIsAnErrorOnEveryRank) {
  ExpectMismatches(10'000, [](Ask* ask) { ask->shape = {100, 100}; }, {"float32, 10000", "float32, 100x100"});
}

TEST(Local, AMismatchOfReductionsIsAnErrorOnEveryRank) {
  ExpectMismatches(10'000, [](Ask* ask) { ask->reduction = BPS_MAX; }, {"push_pull (sum) of", "push_pull (max) of"});
}

TEST(Local, AMismatchOfSmallTensorsIsAnErrorOnEveryRank) {
  ExpectMismatches(10, [](Ask* ask) { ask->dtype = BPS_INT32; }, {"of float32, 10", "of int32, 10"});
}

TEST(Local, AMismatchOfPushPullAndBroadcastIsAnErrorOnEveryRank) {
  ExpectMismatches(10'000, [](Ask* ask) { ask->kind = wire::Operation::kBroadcast; },
                   {"push_pull (sum) of", "broadcast from rank 0"});
}

TEST(Local, AMismatchOfNumbersIsAnErrorOnEveryRank) {
  for (const size_t elements : {10, 10'000}) {
    ExpectMismatches(elements, [](Ask* ask) { ask->match = 7; }, {"scaling or number"});
  }
}

TEST(Local, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job(HostOptions(seed, 3));
    ASSERT_TRUE(job.Start());
    const size_t elements = seed % 2 == 0 ? 5000 : 5;
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < 2; ++w) {
      Ask ask = FloatAsk("weights", elements);
      ask.timeout = 2 * kSecond;
      calls.push_back(job.worker(w).Submit(ask));
    }
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntilEnded(calls, 10 * kSecond));
    EXPECT_LE(job.fabric().now() - begin, 5 * kSecond);
    for (const Call* call : calls) {
      EXPECT_EQ(call->outcome().code(), absl::StatusCode::kDeadlineExceeded) << call->outcome();
      EXPECT_THAT(std::string(call->outcome().message()), HasSubstr("rank 2"));
    }
    // It comes too late, and meets the failed round.
    job.RunFor(kSecond);
    Call* late = job.worker(2).Submit(FloatAsk("weights", elements));
    ASSERT_NE(late, nullptr);
    ASSERT_TRUE(job.RunUntil([&] { return late->ended(); }));
    EXPECT_FALSE(late->ok());
    ExpectGoesOn(&job, "weights", kSizes);
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Local, ACancelEndsTheRoundForAll) {
  ForEachSeed(150, [](uint64_t seed) {
    SimulatedJob job(HostOptions(seed, 3));
    ASSERT_TRUE(job.Start());
    const size_t elements = seed % 2 == 0 ? 400'000 : 20;
    const bool all = job.fabric().random().Chance(0.5);
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < (all ? 3 : 2); ++w) calls.push_back(job.worker(w).Submit(FloatAsk("weights", elements)));
    job.RunFor(job.fabric().random().Between(0, 20) * kMillisecond / 4);
    job.worker(1).Cancel(calls[1]);
    if (!all) {
      job.RunFor(job.fabric().random().Between(0, 20) * kMillisecond);
      calls.push_back(job.worker(2).Submit(FloatAsk("weights", elements)));
    }
    ASSERT_TRUE(job.RunUntilEnded(calls));
    EXPECT_TRUE(calls[1]->ok() || calls[1]->outcome().code() == absl::StatusCode::kCancelled) << calls[1]->outcome();
    for (const uint32_t w : {0u, 2u}) {
      EXPECT_TRUE(calls[w]->ok() || calls[w]->outcome().code() == absl::StatusCode::kAborted) << calls[w]->outcome();
      if (!calls[w]->ok()) {
        EXPECT_THAT(std::string(calls[w]->outcome().message()), HasSubstr("rank 1"));
      }
      if (calls[1]->ok()) {
        EXPECT_TRUE(calls[w]->ok()) << calls[w]->outcome();
      }
    }
    ExpectGoesOn(&job, "weights", kSizes);
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

// Some are in the middle of the others' memory when one dies: an error on all others, and no byte moves afterwards.
TEST(Local, ADeathIsAnErrorOnAllOthersThatNamesIt) {
  ForEachSeed(100, [](uint64_t seed) {
    SimulatedJob job(HostOptions(seed, 3));
    ASSERT_TRUE(job.Start());
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < 3; ++w) calls.push_back(job.worker(w).Submit(FloatAsk("weights", 400'000)));
    Call* others = job.worker(0).Submit(FloatAsk("alone", 400'000));
    job.fabric().Timer(job.fabric().now() + job.fabric().random().Between(0, 3000) * 1000,
                       [&] { job.fabric().Kill("worker1"); });
    ASSERT_TRUE(job.RunUntil(
        [&] {
          return others->ended() && calls[0]->ended() && calls[2]->ended() && !job.worker(0).failure().ok() &&
                 !job.worker(2).failure().ok();
        },
        30 * kSecond));
    for (const uint32_t w : {0u, 2u}) {
      EXPECT_THAT(std::string(job.worker(w).failure().message()), HasSubstr("rank 1")) << job.worker(w).failure();
    }
    EXPECT_THAT(std::string(others->outcome().message()), HasSubstr("rank 1"));
    job.RunFor(kSecond);
    job.CheckMemory();
  });
}

TEST(Local, SessionsOpenAgain) {
  ForEachSeed(30, [](uint64_t seed) {
    JobOptions options = HostOptions(seed, 3);
    options.linger = 20 * kSecond;
    SimulatedJob job(options);
    for (int life = 0; life < 3; ++life) {
      if (life > 0) job.Reopen();
      ASSERT_TRUE(job.Start());
      ExpectGoesOn(&job, "t", kSizes);
    }
    job.Finish();
  });
}

// Two hosts have no common memory.
TEST(Local, WorkersThatCannotReduceAmongThemselvesNeedAServer) {
  JobOptions options = HostOptions(1, 2);
  options.servers = 0;
  options.local = false;
  SimulatedJob job(options);
  EXPECT_FALSE(job.Start());
  EXPECT_THAT(std::string(job.worker(0).failure().message()), HasSubstr("no servers"));
  EXPECT_THAT(std::string(job.worker(0).failure().message()), HasSubstr("has no transport for its own host"));
}

}  // namespace
}  // namespace byteps
