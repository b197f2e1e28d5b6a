// The bits of a result are a function of the inputs and the groups alone: not of the network, the order of anything,
// the cut or the number of servers.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/exchanges.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

TEST(Determinism, SumsAreTheRankOrderFoldWhateverTheNetworkTheCutAndTheServers) {
  ForEachSeed(200, [](uint64_t seed) {
    sim::Random random(seed);
    JobOptions options;
    options.seed = seed;
    options.workers = static_cast<uint32_t>(random.Between(2, 4));
    options.servers = random.Chance(0.5) ? 1 : 3;
    options.lanes = static_cast<uint32_t>(random.Between(1, 2));
    // Also sizes that are no whole elements.
    options.partition_bytes = (512u << random.Below(5)) + (random.Chance(0.5) ? random.Below(300) : 0);
    options.slot_bytes = 8192;
    options.slots_per_peer = static_cast<uint32_t>(random.Between(1, 4));
    options.inline_bytes = random.Chance(0.5) ? 0 : 1024;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const size_t sizes[] = {1, 3, 100, 1000, 5000, 20000};
    Exchanges exchanges(&job);
    for (const size_t size : sizes) exchanges.Sum("t" + std::to_string(size), size);
    exchanges.Check();
    job.Finish();
  });
}

TEST(Determinism, EveryDataTypeAndOperationWithGroups) {
  ForEachSeed(60, [](uint64_t seed) {
    JobOptions options;
    options.seed = seed;
    options.workers = 4;
    options.workers_per_host = 2;
    options.servers = 2;
    options.groups = "host";
    // 101: twelve elements of eight bytes, 25 of four, 50 of two, 101 of one.
    options.partition_bytes = seed % 6 != 0 ? 1024 : 101;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    Exchanges exchanges(&job);
    exchanges.EveryDataTypeAndReduction({7, 100}, {2, 2});
    exchanges.Check();
    job.Finish();
  });
}

TEST(Determinism, ABroadcastIsTheRootsInput) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job({.seed = seed, .workers = 3, .servers = 2});
    ASSERT_TRUE(job.Start());
    Exchanges exchanges(&job);
    exchanges.Broadcasts({1, 10'000});
    exchanges.Check();
    job.Finish();
  });
}

uint64_t FingerprintOf(uint64_t seed) {
  SimulatedJob job({.seed = seed, .workers = 3, .servers = 2});
  EXPECT_TRUE(job.Start());
  std::vector<Call*> calls;
  for (int tensor = 0; tensor < 10; ++tensor) {
    for (uint32_t w = 0; w < 3; ++w) {
      calls.push_back(job.worker(w).PushPull("t" + std::to_string(tensor), job.Numbers(3000)));
    }
  }
  EXPECT_TRUE(job.RunUntilEnded(calls));
  return job.fabric().Fingerprint();
}

TEST(Determinism, TheSameSeedIsTheSameRun) {
  for (uint64_t seed = 1; seed <= 10; ++seed) EXPECT_EQ(FingerprintOf(seed), FingerprintOf(seed)) << seed;
}

}  // namespace
}  // namespace byteps
