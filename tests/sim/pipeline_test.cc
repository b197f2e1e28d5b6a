// A stage more, before and behind each that there is, on several hosts: one that delays parts and lets them change
// places, one that hands on other bytes in other memory. What the stages beside it do stays what it is, to the bit.

#include <memory>
#include <string>
#include <vector>

#include "core/worker/tensor/relay_stage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/delay_stage.h"
#include "tests/sim/detour_stage.h"
#include "tests/sim/exchanges.h"
#include "tests/sim/expect_mismatch.h"
#include "tests/sim/simulated_job.h"
#include "tests/sim/widening_stage.h"

namespace byteps {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Stage> Delay(uint64_t seed) { return std::make_unique<DelayStage>(seed); }
std::unique_ptr<Stage> Detour(uint64_t) { return std::make_unique<DetourStage>(); }

struct Place {
  const char* name;
  std::vector<JobOptions::AddedStage> stages;
};

std::string NameOf(const testing::TestParamInfo<Place>& info) { return info.param.name; }

class PipelineTest : public testing::TestWithParam<Place> {
 protected:
  // Two hosts, or one, or none with several workers.
  static JobOptions Options(uint64_t seed) {
    sim::Random random(seed);
    JobOptions options;
    options.seed = seed;
    options.hosts = seed % 3 == 0 ? std::vector<uint32_t>{3} : std::vector<uint32_t>{2, 1};
    if (seed % 3 == 1) options.hosts = {1, 1, 1};
    options.workers = 3;
    options.servers = seed % 3 == 0 ? 0 : static_cast<uint32_t>(random.Between(1, 2));
    options.lanes = static_cast<uint32_t>(random.Between(1, 2));
    options.partition_bytes = 512u << random.Below(4);
    options.slot_bytes = 8192;
    options.inline_bytes = random.Chance(0.3) ? 0 : 1024;
    options.groups = seed % 3 == 0 ? "none" : "host";
    options.local = seed % 3 != 1;
    options.copy_refused = random.Chance(0.3);
    options.stages = GetParam().stages;
    return options;
  }
};

const std::vector<size_t> kSizes = {3, 3000};

TEST_P(PipelineTest, SumsAndBroadcastsAreTheSameToTheBit) {
  ForEachSeed(30, [](uint64_t seed) {
    SimulatedJob job(Options(seed));
    ASSERT_TRUE(job.Start());
    const std::string chain = job.worker(0).engine().DescribeStages();
    for (const JobOptions::AddedStage& added : GetParam().stages) {
      // A chain without servers has no place before them.
      if (chain.find(added.before) != std::string::npos) {
        ASSERT_THAT(chain, HasSubstr(added.make(0)->name()));
      }
    }
    for (int round = 0; round < 2; ++round) {
      Exchanges exchanges(&job, 0.1);
      for (const size_t size : {0, 1, 17, 257, 5000, 20'000}) exchanges.Sum("t" + std::to_string(size), size);
      exchanges.Broadcasts({0, 1, 5000});
      exchanges.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.Finish();
  });
}

TEST_P(PipelineTest, EveryDataTypeAndOperation) {
  ForEachSeed(9, [](uint64_t seed) {
    SimulatedJob job(Options(seed));
    ASSERT_TRUE(job.Start());
    Exchanges exchanges(&job);
    exchanges.EveryDataTypeAndReduction({seed % 2 == 0 ? 700 : 20}, job.options().hosts);
    exchanges.Check();
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST_P(PipelineTest, AServerWithHardlyAnyMemoryAsksAgain) {
  ForEachSeed(9, [](uint64_t seed) {
    JobOptions options = Options(seed);
    if (options.servers == 0) return;
    options.servers = options.lanes = options.slots_per_peer = 1;
    options.partition_bytes = 4096;
    options.server_memory = 160 * 1024;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    Exchanges exchanges(&job);
    for (int tensor = 0; tensor < 8; ++tensor) exchanges.Sum("t" + std::to_string(tensor), 10'000);
    exchanges.Check();
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST_P(PipelineTest, AMismatchIsAnErrorOnEveryRankAndTheSessionGoesOn) {
  ForEachSeed(15, [](uint64_t seed) {
    ExpectMismatch(
        Options(seed), FloatAsk("weights", seed % 2 == 0 ? 5000 : 10), [](Ask* ask) { ask->reduction = BPS_MAX; },
        [](uint32_t) {
          return Words{"push_pull (sum) of", "push_pull (max) of", "the ranks disagree: "};
        },
        kSizes);
  });
}

TEST_P(PipelineTest, ACancelEndsTheRoundForAll) {
  ForEachSeed(45, [](uint64_t seed) {
    SimulatedJob job(Options(seed));
    ASSERT_TRUE(job.Start());
    const size_t elements = seed % 2 == 0 ? 20'000 : 20;
    const uint32_t one = static_cast<uint32_t>(job.fabric().random().Below(job.workers()));
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < job.workers(); ++w) calls.push_back(job.worker(w).Submit(FloatAsk("weights", elements)));
    job.RunFor(job.fabric().random().Between(0, 40) * kMillisecond / 8);
    job.worker(one).Cancel(calls[one]);
    ASSERT_TRUE(job.RunUntilEnded(calls));
    for (uint32_t w = 0; w < job.workers(); ++w) {
      if (calls[w]->ok()) continue;
      EXPECT_EQ(calls[w]->outcome().code(), w == one ? absl::StatusCode::kCancelled : absl::StatusCode::kAborted)
          << calls[w]->outcome();
    }
    ExpectGoesOn(&job, "weights", kSizes);
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST_P(PipelineTest, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  ForEachSeed(15, [](uint64_t seed) {
    SimulatedJob job(Options(seed));
    ASSERT_TRUE(job.Start());
    const uint32_t late = static_cast<uint32_t>(job.fabric().random().Below(job.workers()));
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < job.workers(); ++w) {
      if (w == late) continue;
      Ask ask = FloatAsk("weights", seed % 2 == 0 ? 5000 : 5);
      ask.timeout = 2 * kSecond;
      calls.push_back(job.worker(w).Submit(ask));
    }
    ASSERT_TRUE(job.RunUntilEnded(calls, 10 * kSecond));
    for (const Call* call : calls) {
      EXPECT_EQ(call->outcome().code(), absl::StatusCode::kDeadlineExceeded) << call->outcome();
      EXPECT_THAT(std::string(call->outcome().message()), HasSubstr("rank " + std::to_string(late)));
    }
    Call* call = job.worker(late).Submit(FloatAsk("weights", seed % 2 == 0 ? 5000 : 5));
    ASSERT_NE(call, nullptr);
    ASSERT_TRUE(job.RunUntil([&] { return call->ended(); }));
    EXPECT_FALSE(call->ok());
    ExpectGoesOn(&job, "weights", kSizes);
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST_P(PipelineTest, ADeathIsAnErrorOnAllOthers) {
  ForEachSeed(30, [](uint64_t seed) {
    SimulatedJob job(Options(seed));
    ASSERT_TRUE(job.Start());
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < job.workers(); ++w) {
      calls.push_back(job.worker(w).Submit(FloatAsk("weights", 50'000)));
      calls.push_back(job.worker(w).Submit(FloatAsk("small", 10)));
    }
    const uint32_t dead = static_cast<uint32_t>(job.fabric().random().Below(job.workers()));
    job.fabric().Timer(job.fabric().now() + job.fabric().random().Between(0, 5000) * 1000,
                       [&] { job.fabric().Kill(job.worker(dead).name()); });
    ASSERT_TRUE(job.RunUntil(
        [&] {
          for (uint32_t w = 0; w < job.workers(); ++w) {
            if (w != dead && (!calls[2 * w]->ended() || !calls[2 * w + 1]->ended())) return false;
          }
          return true;
        },
        30 * kSecond));
    job.RunFor(kSecond);
    job.CheckMemory();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Places, PipelineTest,
    testing::Values(Place{"DelayAtTheFront", {{"", Delay}}}, Place{"DelayBehindLocal", {{"servers", Delay}}},
                    Place{"DetourAtTheFront", {{"", Detour}}}, Place{"DetourBehindLocal", {{"servers", Detour}}},
                    Place{"BothEverywhere", {{"", Detour}, {"", Delay}, {"servers", Delay}, {"servers", Detour}}}),
    NameOf);

// Behind it elements are of another size, and the sum is that of the wider numbers.
TEST(WideningTest, WhatIsReducedIsWhatTravels) {
  JobOptions options;
  options.hosts = {3};
  options.workers = 3;
  options.servers = 0;
  options.local = true;
  options.stages = {{"local", [](uint64_t) { return std::make_unique<WideningStage>(); }}};
  for (const size_t elements : {10, 5000}) {
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    EXPECT_EQ(job.worker(0).engine().DescribeStages(), "widening > local");
    // In float32 the second is lost beside the first.
    std::vector<Call*> calls;
    for (const float number : {1e8F, 1.0F, -1e8F}) {
      calls.push_back(
          job.worker(static_cast<uint32_t>(calls.size())).PushPull("w", std::vector<float>(elements, number)));
    }
    ASSERT_TRUE(job.RunUntilEnded(calls));
    for (const Call* call : calls) {
      ASSERT_TRUE(call->ok()) << call->outcome();
      EXPECT_THAT(call->Output<float>(), testing::Each(1.0F));
    }
    job.Finish();
  }
}

}  // namespace
}  // namespace byteps
