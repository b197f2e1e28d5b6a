// How close a job comes to what its links can carry, in virtual time: what a round takes is the same on every machine.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/exchanges.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

// 200 Mbit/s each way for everybody, processors that cost next to nothing, and the defaults of a real job.
JobOptions Links(uint32_t workers, uint32_t servers) {
  JobOptions options;
  options.adverse = false;
  options.workers = workers;
  options.servers = servers;
  options.partition_bytes = 0;
  options.slot_bytes = 512 << 10;
  options.slots_per_peer = 4;
  options.server_memory = 64 << 20;
  options.inline_bytes = 4096;
  options.scheduler = "credit";
  options.slowness = 20 * sim::kMicrosecond;
  options.endpoint.flags |= BPS_TRANSPORT_CHEAP_REG;
  options.endpoint.bytes_per_second = 25'000'000;
  options.link.latency = 100 * sim::kMicrosecond;
  return options;
}

// The last of so many rounds, over the time of its bytes on a link.
double LastRound(const JobOptions& options, size_t elements, int rounds) {
  SimulatedJob job(options);
  if (!job.Start()) return 0;
  Time took = 0;
  for (int round = 0; round < rounds; ++round) {
    const Time begin = job.fabric().now();
    std::vector<Call*> calls;
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      calls.push_back(job.worker(rank).Submit(FloatAsk("w", elements)));
    }
    if (!job.RunUntilEnded(calls)) return 0;
    took = job.fabric().now() - begin;
  }
  job.Finish();
  const double least =
      static_cast<double>(elements * sizeof(float)) * 1e9 / static_cast<double>(options.endpoint.bytes_per_second);
  return static_cast<double>(took) / least;
}

// What is short must not wait behind what is long: a slot that is given back and the word that a payload is there came
// behind all that had been written meanwhile, and the links stood still (1.5 and more of the least possible time).
TEST(Link, CarriesPayloadNearlyAllTheTime) {
  const double round = LastRound(Links(4, 4), 2'500'000, 5);
  EXPECT_GE(round, 1.0);
  EXPECT_LE(round, 1.1);
}

TEST(Link, AlsoWithTwoOfEach) {
  const double round = LastRound(Links(2, 2), 2'500'000, 5);
  EXPECT_GE(round, 1.0);
  EXPECT_LE(round, 1.1);
}

// Ten rows of eight parts, one for each server: the first results can leave when a row is there, a tenth of the time. All
// workers began with the first server, whose row was there then, the last one's a row later, and the same with results:
// 1.2 of the least possible.
TEST(Link, AllServersHaveARowOfPartsAtTheSameTime) {
  JobOptions options = Links(8, 8);
  options.partition_bytes = 125'000;
  EXPECT_LE(LastRound(options, 2'500'000, 2), 1.15);
  options.endpoint.socket_bytes = 1'000'000;
  EXPECT_LE(LastRound(options, 2'500'000, 2), 1.15);
}

// Dedicated servers beside colocated ones have several times their share. The colocated ones, which always had room, got
// theirs first, to the end of the tensor, and then everybody waited for the dedicated ones: 1.4 of the least possible.
TEST(Link, DedicatedServersBesideColocatedOnesGetTheirShareAllTheTime) {
  JobOptions options = Links(8, 12);
  options.colocated = true;
  options.partition_bytes = 64 << 10;
  // n workers, k dedicated servers: 2n(n-1) / (n^2 + kn - 2k) of the time of the bytes.
  EXPECT_LE(LastRound(options, 2'500'000, 2), 1.27 * 1.2);
}

}  // namespace
}  // namespace byteps
