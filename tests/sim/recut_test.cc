// Cuts that change while a job runs: all ranks change at the same round, and nothing else changes.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

JobOptions Adapting(uint64_t seed) {
  JobOptions options;
  options.seed = seed;
  options.partition_bytes = 0;
  options.slot_bytes = 512 << 10;
  options.server_memory = 64 << 20;
  options.servers = 2;
  return options;
}

uint32_t PartsOf(SimulatedJob* job, uint32_t rank, const std::string& name, int64_t elements) {
  const std::vector<int64_t> shape = {elements};
  return job->worker(rank).engine().tensors().Find(name, BPS_FLOAT32, shape)->cut->parts();
}

// 200 Mbit/s: a tensor of 2 MB begins as four parts and ends as many; the rounds get shorter.
TEST(Recut, ASlowLinkGetsSmallerPartsAndFasterRounds) {
  JobOptions options = Adapting(1);
  options.adverse = false;
  options.endpoint.bytes_per_second = 25'000'000;
  options.link.latency = 100'000;
  options.scheduler = "credit";
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  constexpr size_t kElements = 500'000;
  std::vector<std::vector<float>> inputs = {job.Numbers(kElements), job.Numbers(kElements)};
  const std::vector<float> sum = SimulatedJob::Sum(inputs);
  std::map<int, Time> took;
  uint32_t parts_at_first = 0;
  for (int round = 0; round < 10; ++round) {
    const Time begin = job.fabric().now();
    std::vector<Call*> calls;
    for (uint32_t rank = 0; rank < 2; ++rank) calls.push_back(job.worker(rank).PushPull("w", inputs[rank]));
    ASSERT_TRUE(job.RunUntilEnded(calls));
    for (const Call* call : calls) {
      ASSERT_TRUE(call->ok()) << call->outcome();
      ASSERT_EQ(call->Output<float>(), sum) << "round " << round;
    }
    took[round] = job.fabric().now() - begin;
    if (round == 0) parts_at_first = PartsOf(&job, 0, "w", kElements);
  }
  EXPECT_EQ(parts_at_first, 4u);
  for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_GE(PartsOf(&job, rank, "w", kElements), 20u);
  EXPECT_LT(took[9], took[1] * 95 / 100);
  RecordProperty("rounds", std::to_string(took[1]) + " then " + std::to_string(took[9]));
  job.Finish();
}

// Bad networks, tensors of many sizes, cancelled rounds, a rank far behind: results are the sums, and nothing is left.
TEST(Recut, AnyNetworkAnyTrouble) {
  int cut_again = 0;
  ForEachSeed(6, [&](uint64_t seed) {
    JobOptions options = Adapting(seed);
    options.workers = 3;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    std::vector<size_t> sizes;
    sizes.push_back(100'000 +
                    job.fabric().random().Below(60'000));  // is cut again, if it is ever known how fast it moves
    for (int tensor = 1; tensor < 3; ++tensor) sizes.push_back(1 + job.fabric().random().Below(60'000));
    for (int round = 0; round < 18; ++round) {
      std::vector<std::vector<std::vector<float>>> inputs(sizes.size());
      std::vector<Call*> calls;
      const uint32_t parts = round == 0 ? 0 : PartsOf(&job, 0, "t0", static_cast<int64_t>(sizes[0]));
      const bool cancelled = job.fabric().random().Chance(0.2);
      for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
        for (uint32_t rank = 0; rank < 3; ++rank) {
          inputs[tensor].push_back(job.Numbers(sizes[tensor]));
          calls.push_back(job.worker(rank).PushPull("t" + std::to_string(tensor), inputs[tensor].back()));
          ASSERT_NE(calls.back(), nullptr);
          if (job.fabric().random().Chance(0.1)) job.RunFor(3 * kMillisecond);
        }
      }
      if (cancelled) job.worker(seed % 3).Cancel(calls[seed % 3]);  // of t0
      ASSERT_TRUE(job.RunUntilEnded(calls)) << "round " << round;
      for (const Call* call : calls) {
        const size_t tensor = call->name[1] - '0';
        if (cancelled && tensor == 0 && !call->ok()) continue;
        ASSERT_TRUE(call->ok()) << "round " << round << ": " << call->outcome();
        ASSERT_EQ(call->Output<float>(), SimulatedJob::Sum(inputs[tensor])) << "round " << round;
      }
      if (round > 0 && PartsOf(&job, 0, "t0", static_cast<int64_t>(sizes[0])) != parts) ++cut_again;
    }
    job.Finish();
  });
  // Otherwise nothing was tested.
  EXPECT_GT(cut_again, 0);
}

}  // namespace
}  // namespace byteps
