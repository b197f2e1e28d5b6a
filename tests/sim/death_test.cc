// Deaths at any moment: every survivor's operations end, with an error that names the dead; never a hang.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Fate {
  std::string victim;
  sim::Death death;
};

// A job that trains, until `fate` strikes at a moment drawn from the seed.
void ExpectEverybodyHears(uint64_t seed, const Fate& fate) {
  JobOptions options;
  options.seed = seed;
  options.workers = 3;
  options.servers = 2;
  options.start_timeout = 10 * kSecond;
  SimulatedJob job(options);
  // Half of them while the job starts, half while it works.
  const bool early = job.fabric().random().Chance(0.3);
  const auto strike = [&] { job.fabric().Kill(fate.victim, fate.death); };
  if (early) job.fabric().Timer(job.fabric().random().Between(0, 100) * kMillisecond, strike);
  if (!early) {
    ASSERT_TRUE(job.Start());
    job.fabric().Timer(job.fabric().now() + job.fabric().random().Between(0, 200'000) * 1000, strike);
  }
  std::vector<Call*> running(3, nullptr);
  std::vector<Time> rest(3, 0);  // it computes until then
  const Time begin = job.fabric().now();
  const auto failed = [&](uint32_t w) { return !job.worker(w).failure().ok(); };
  // One round of training on this rank, as far as it is its turn. True: it has been told that it is all over.
  const auto train = [&](uint32_t w) {
    SimulatedWorker& worker = job.worker(w);
    if (!worker.alive()) return true;
    if (running[w] != nullptr && running[w]->ended()) {
      running[w] = nullptr;
      rest[w] = job.fabric().now() +
                job.fabric().random().Between(0, job.fabric().Alive(fate.victim) ? 2 : 500) * kMillisecond;
      job.fabric().Timer(rest[w], [] {});
    }
    if (running[w] == nullptr && !failed(w) && job.fabric().now() >= rest[w]) {
      running[w] = worker.PushPull("t", std::vector<float>(9000));
    }
    return failed(w) && running[w] == nullptr;
  };
  ASSERT_TRUE(job.RunUntil(
      [&] {
        const bool all[] = {train(0), train(1), train(2)};
        return all[0] && all[1] && all[2];
      },
      60 * kSecond));
  EXPECT_LE(job.fabric().now() - begin, 30 * kSecond) << "too late";
  for (uint32_t w = 0; w < 3; ++w) {
    SimulatedWorker& worker = job.worker(w);
    if (!worker.alive()) continue;
    EXPECT_EQ(worker.engine().in_flight(), 0u);
    const std::string text(worker.failure().message());
    if (early) {  // a member that never came is named by its place
      EXPECT_THAT(text, AnyOf(HasSubstr(fate.victim), HasSubstr("waits for"))) << worker.name();
    } else {
      EXPECT_THAT(text, HasSubstr(fate.victim)) << worker.name();
    }
    // Later calls fail at once, with the same cause.
    absl::Status refused;
    Ask ask;
    ask.name = "later";
    ask.shape = {1};
    ask.input.resize(4);
    EXPECT_EQ(worker.Submit(ask, &refused), nullptr);
    EXPECT_EQ(refused, worker.failure());
  }
  // A worker's death is not the servers': they forget the session.
  if (fate.victim.rfind("worker", 0) == 0) {
    EXPECT_TRUE(
        job.RunUntil([&] { return job.server(0).sessions() == 0 && job.server(1).sessions() == 0; }, 30 * kSecond));
    for (uint32_t s = 0; s < 2; ++s) {
      EXPECT_TRUE(job.server(s).failure().ok()) << job.server(s).failure();
      for (const auto& lane : job.server(s).lanes()) EXPECT_EQ(lane->stats().pool.blocks, 0u) << lane->Describe();
    }
  }
  job.CheckMemory();
}

TEST(Death, OfAWorkerIsToldToAllOthers) {
  ForEachSeed(150, [](uint64_t seed) {
    ExpectEverybodyHears(seed, {"worker" + std::to_string(seed % 3), sim::Death::kNoticed});
  });
}

TEST(Death, OfAWorkerThatFallsSilentIsToldToAllOthers) {
  ForEachSeed(100, [](uint64_t seed) {
    ExpectEverybodyHears(seed, {"worker" + std::to_string(seed % 3), sim::Death::kSilent});
  });
}

TEST(Death, OfAServerIsToldToAllWorkers) {
  ForEachSeed(150, [](uint64_t seed) {
    ExpectEverybodyHears(seed, {"server" + std::to_string(seed % 2), sim::Death::kNoticed});
  });
}

TEST(Death, OfAServerThatFallsSilentIsToldToAllWorkers) {
  ForEachSeed(100, [](uint64_t seed) {
    ExpectEverybodyHears(seed, {"server" + std::to_string(seed % 2), sim::Death::kSilent});
  });
}

TEST(Death, OfTheCoordinatorEndsTheSession) {
  ForEachSeed(100, [](uint64_t seed) {
    ExpectEverybodyHears(seed, {"coordinator", seed % 2 == 0 ? sim::Death::kNoticed : sim::Death::kSilent});
  });
}

}  // namespace
}  // namespace byteps
