// One name, of which some ranks ask for an operation through servers (or among the workers of a host), and some for one
// from worker to worker: an error on every rank that says who asks for what, and the name goes on, both ways.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

constexpr char kReason[] = "the step ended half-way";

bool AllEnd(SimulatedJob* job, const std::vector<const Request*>& requests) {
  return job->RunUntil(
      [&] { return std::all_of(requests.begin(), requests.end(), [](const Request* each) { return each->ended(); }); },
      5 * kSecond);
}

// One rank gives up a round that the others ask for the other way: they hear of it at once, whoever comes first.
// `gathers`: these ask from worker to worker, and it gives up what goes through stages; false: the other way round;
// nullopt: each as it likes.
void ExpectOthersHear(uint64_t seed, std::optional<bool> gathers) {
  SimulatedJob job(OptionsOf(seed));
  ASSERT_TRUE(job.Start());
  sim::Random& random = job.fabric().random();
  const uint32_t size = job.workers();
  const auto giver = static_cast<uint32_t>(random.Below(size));
  for (uint64_t before = random.Below(3); before > 0; --before) ExpectGoesOn(&job, "x");
  // The giver first, last, or between.
  std::vector<uint32_t> order;
  for (uint32_t rank = 0; rank < size; ++rank) order.push_back(rank);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  const bool waits = random.Chance(0.7);
  std::vector<std::unique_ptr<Gather>> collectives;
  std::vector<const Request*> others;
  const Request* given_up = nullptr;
  for (const uint32_t rank : order) {
    const bool gives_up = rank == giver;
    const Request* request = nullptr;
    if (gathers ? *gathers != gives_up : random.Chance(0.5)) {
      collectives.push_back(std::make_unique<Gather>("x", size, random.Chance(0.5) ? 10 : 5000));
      Collective asked = collectives.back()->asked();
      if (gives_up) asked.given_up = absl::CancelledError(kReason);
      const absl::Status status = job.worker(rank).Collect(asked);
      ASSERT_TRUE(status.ok()) << status;
      request = asked.request.get();
    } else {
      Ask ask = FloatAsk("x", 10);
      if (gives_up) ask.given_up = absl::CancelledError(kReason);
      const Call* call = job.worker(rank).Submit(ask);
      ASSERT_NE(call, nullptr);
      request = call->request.get();
    }
    if (gives_up) {
      given_up = request;
    } else {
      others.push_back(request);
    }
    if (waits) job.RunFor(random.Between(0, 200) * kMillisecond);
  }
  ASSERT_TRUE(AllEnd(&job, {given_up})) << "the one that gives up waits for none";
  ASSERT_TRUE(AllEnd(&job, others)) << "the others hear of it before their deadline";
  EXPECT_EQ(given_up->outcome().code(), absl::StatusCode::kCancelled) << given_up->outcome();
  for (const Request* each : others) {
    // Those that go different ways may have seen that first.
    if (!gathers && absl::IsFailedPrecondition(each->outcome())) continue;
    EXPECT_EQ(each->outcome().code(), absl::StatusCode::kAborted) << each->outcome();
    EXPECT_THAT(std::string(each->outcome().message()),
                AllOf(HasSubstr("rank " + std::to_string(giver) + " ("), HasSubstr(kReason)));
  }
  ExpectBothWays(&job, "x");
  if (!::testing::Test::HasFatalFailure()) job.Finish();
}

TEST(Ways, ARoundOfStagesIsGivenUpThatOthersAskForFromWorkerToWorker) {
  ForEachSeed(300, [](uint64_t seed) { ExpectOthersHear(seed, true); });
}

TEST(Ways, ARoundFromWorkerToWorkerIsGivenUpThatOthersAskForThroughStages) {
  ForEachSeed(300, [](uint64_t seed) { ExpectOthersHear(seed, false); });
}

TEST(Ways, ARoundIsGivenUpThatOthersAskForBothWays) {
  ForEachSeed(300, [](uint64_t seed) { ExpectOthersHear(seed, std::nullopt); });
}

// What a rank hears of a round that it gives up is that, also where another has given it up before.
TEST(Ways, EveryRankGivesTheRoundUp) {
  ForEachSeed(40, [](uint64_t seed) {
    SimulatedJob job(OptionsOf(seed));
    ASSERT_TRUE(job.Start());
    const bool waits = seed % 3 != 0;
    std::vector<std::unique_ptr<Gather>> gathers;
    for (uint32_t rank = 0; rank < job.workers(); ++rank) {
      gathers.push_back(std::make_unique<Gather>("x", job.workers(), 10));
      Collective asked = gathers.back()->asked();
      asked.given_up = absl::CancelledError(kReason);
      const absl::Status status = job.worker(rank).Collect(asked);
      ASSERT_TRUE(status.ok()) << status;
      if (waits) job.RunFor(200 * kMillisecond);
    }
    for (const auto& each : gathers) {
      ASSERT_TRUE(AllEnd(&job, {&each->request()}));
      EXPECT_EQ(each->request().outcome().code(), absl::StatusCode::kCancelled) << each->request().outcome();
    }
    ExpectBothWays(&job, "x");
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

// One rank has joined, and is asked to take part in both: what it cannot take part in it gives up, too.
TEST(Ways, ARankHasJoinedMeanwhile) {
  ForEachSeed(100, [](uint64_t seed) {
    JobOptions options = OptionsOf(seed);
    options.workers = 3;
    if (options.local) options.workers_per_host = 3;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    sim::Random& random = job.fabric().random();
    std::vector<int32_t> last(3, -1);
    std::vector<std::shared_ptr<Request>> joins;
    const auto join = [&](uint32_t rank) {
      const auto request = std::make_shared<Request>(nullptr, nullptr);
      const absl::Status status = job.worker(rank).Join({request, 600 * kSecond, &last[rank]});
      ASSERT_TRUE(status.ok()) << status;
      joins.push_back(request);
    };
    join(2);
    job.RunFor(random.Between(0, 300) * kMillisecond);  // the others have heard of it, or not
    const Gather gather("x", 3, 10);
    // No rank can take part with zeros in a broadcast of its own.
    Ask ask = FloatAsk("x", 10);
    if (random.Chance(0.5)) {
      ask.given_up = absl::CancelledError(kReason);
    } else {
      ask.kind = wire::Operation::kBroadcast;
      ask.root = 2;
    }
    const bool gather_first = random.Chance(0.5);
    const Call* call = nullptr;
    for (int turn = 0; turn < 2; ++turn) {
      if ((turn == 0) == gather_first) {
        const absl::Status status = job.worker(0).Collect(gather.asked());
        ASSERT_TRUE(status.ok()) << status;
      } else {
        call = job.worker(1).Submit(ask);
        ASSERT_NE(call, nullptr);
      }
      job.RunFor(random.Between(0, 200) * kMillisecond);
    }
    ASSERT_TRUE(AllEnd(&job, {&gather.request(), call->request.get()}));
    EXPECT_THAT(gather.request().outcome().code(),
                AnyOf(absl::StatusCode::kAborted, absl::StatusCode::kFailedPrecondition))
        << gather.request().outcome();
    join(0);
    join(1);
    ASSERT_TRUE(AllEnd(&job, {joins[0].get(), joins[1].get(), joins[2].get()}));
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
