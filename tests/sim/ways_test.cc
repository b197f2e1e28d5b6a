// One name, of which some ranks ask for an operation through servers (or among the workers of a host), and some for one
// from worker to worker: an error on every rank that says who asks for what, and the name goes on, both ways.

#include <memory>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/exchanges.h"
#include "tests/sim/gather.h"
#include "tests/sim/simulated_job.h"
#include "transport_plugins/sim/random.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

JobOptions OptionsOf(uint64_t seed) {
  JobOptions options;
  options.seed = seed;
  options.workers = 2 + seed % 3;
  options.servers = 1 + seed % 2;
  options.local = seed % 4 == 0;
  if (options.local) {
    options.workers_per_host = options.workers;
    options.servers = seed % 8 == 0 ? 0 : 1;
  }
  return options;
}

// All ranks, one way and then the other, under the same name.
void ExpectBothWays(SimulatedJob* job, const std::string& name) {
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Gather>> gathers;
    for (uint32_t rank = 0; rank < job->workers(); ++rank) {
      gathers.push_back(std::make_unique<Gather>(name, job->workers(), 700));
      const absl::Status status = job->worker(rank).Collect(gathers.back()->asked());
      ASSERT_TRUE(status.ok()) << status;
    }
    ASSERT_TRUE(job->RunUntil([&] {
      for (const auto& each : gathers) {
        if (!each->request().ended()) return false;
      }
      return true;
    }));
    for (const auto& each : gathers) EXPECT_TRUE(each->request().outcome().ok()) << each->request().outcome();
    ExpectGoesOn(job, name);
  }
}

TEST(Ways, OneNameBothWaysAtOnceIsAnErrorOnEveryRank) {
  ForEachSeed(400, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    sim::Random& random = job.fabric().random();
    const uint32_t size = job.workers();
    // At least one of each.
    std::vector<bool> gathers(size);
    for (uint32_t rank = 0; rank < size; ++rank) gathers[rank] = random.Chance(0.5);
    const auto odd = static_cast<uint32_t>(random.Below(size));
    gathers[odd] = !gathers[(odd + 1) % size];
    // Some rounds before, of either way.
    for (uint64_t before = random.Below(3); before > 0; --before) ExpectGoesOn(&job, "x");
    std::vector<std::unique_ptr<Gather>> others;
    std::vector<Call*> calls;
    for (uint32_t rank = 0; rank < size; ++rank) {
      if (gathers[rank]) {
        others.push_back(std::make_unique<Gather>("x", size, random.Chance(0.5) ? 10 : 5000));
        const absl::Status status = job.worker(rank).Collect(others.back()->asked());
        ASSERT_TRUE(status.ok()) << status;
      } else {
        calls.push_back(job.worker(rank).Submit(FloatAsk("x", random.Chance(0.5) ? 10 : 5000)));
        ASSERT_NE(calls.back(), nullptr);
      }
      if (random.Chance(0.5)) job.RunFor(random.Between(0, 100) * kMillisecond);
    }
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntil([&] {
      for (const auto& each : others) {
        if (!each->request().ended()) return false;
      }
      for (const Call* each : calls) {
        if (!each->ended()) return false;
      }
      return true;
    }));
    EXPECT_LE(job.fabric().now() - begin, 30 * kSecond);
    std::vector<absl::Status> outcomes;
    for (const auto& each : others) outcomes.push_back(each->request().outcome());
    for (const Call* each : calls) outcomes.push_back(each->outcome());
    for (const absl::Status& outcome : outcomes) {
      EXPECT_EQ(outcome.code(), absl::StatusCode::kFailedPrecondition) << outcome;
      EXPECT_THAT(std::string(outcome.message()), HasSubstr("x"));
      // Those that go one way may differ among themselves, too.
      EXPECT_THAT(std::string(outcome.message()),
                  AnyOf(AllOf(HasSubstr("asks for all_gather of int64, * from worker to worker"),
                              HasSubstr("asks for push_pull (sum) of")),
                        HasSubstr("float32, 10")));
    }
    for (uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(job.worker(rank).failure().ok()) << job.worker(rank).failure();
    }
    ExpectBothWays(&job, "x");
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Ways, OneAfterTheOtherMeets) {
  ForEachSeed(100, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    ExpectBothWays(&job, "x");
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Ways, ARankHasOneOperationOfANameInFlight) {
  ForEachSeed(20, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    Call* call = job.worker(0).Submit(FloatAsk("x", 10));
    ASSERT_NE(call, nullptr);
    Gather refused("x", job.workers(), 10), other("y", job.workers(), 10);
    EXPECT_EQ(job.worker(0).Collect(refused.asked()).code(), absl::StatusCode::kAlreadyExists);
    ASSERT_TRUE(job.worker(0).Collect(other.asked()).ok());
    absl::Status status;
    EXPECT_EQ(job.worker(0).Submit(FloatAsk("y", 10), &status), nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
    std::vector<Call*> calls;
    std::vector<std::unique_ptr<Gather>> gathers;
    for (uint32_t rank = 1; rank < job.workers(); ++rank) {
      calls.push_back(job.worker(rank).Submit(FloatAsk("x", 10)));
      gathers.push_back(std::make_unique<Gather>("y", job.workers(), 10));
      ASSERT_TRUE(job.worker(rank).Collect(gathers.back()->asked()).ok());
    }
    ASSERT_TRUE(job.RunUntil([&] { return call->ended() && other.request().ended(); }));
    EXPECT_TRUE(call->ok()) << call->outcome();
    EXPECT_TRUE(other.request().outcome().ok()) << other.request().outcome();
    ASSERT_TRUE(job.RunUntil([&] {
      for (const Call* each : calls) {
        if (!each->ended()) return false;
      }
      for (const auto& each : gathers) {
        if (!each->request().ended()) return false;
      }
      return true;
    }));
    job.Finish();
  });
}

// The rounds of an asynchronous tensor are each rank's own: no collective can be counted with them.
TEST(Ways, NoCollectiveOfAnAsynchronousTensorsName) {
  JobOptions options;
  options.seed = 5;
  options.workers = 2;
  options.servers = 1;
  options.asynchronous = true;
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  Call* add = job.worker(0).Add("w", {1, 2});
  ASSERT_TRUE(job.RunUntilEnded({add}));
  ASSERT_TRUE(add->ok()) << add->outcome();
  const Gather gather("w", job.workers(), 10);
  const absl::Status refused = job.worker(0).Collect(gather.asked());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("\"w\" is an asynchronous tensor"));
  ExpectBothWays(&job, "other");
  job.Finish();
}

}  // namespace
}  // namespace byteps
