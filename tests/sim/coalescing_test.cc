// Many small tensors, submitted one by one without waiting: their records share messages, both ways.

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

TEST(Coalescing, FiveHundredSmallTensorsShareMessages) {
  constexpr int kTensors = 500;
  JobOptions options;
  options.adverse = false;
  options.inline_bytes = 8192;
  options.slot_bytes = options.partition_bytes = 64 << 10;
  options.endpoint.receive_pool = 64;
  options.scheduler = "credit";
  SimulatedJob job(options);
  ASSERT_TRUE(job.Start());
  const std::vector<std::vector<float>> inputs = {job.Numbers(1024), job.Numbers(1024)};
  const std::vector<float> sum = SimulatedJob::Sum(inputs);
  for (int round = 0; round < 2; ++round) {
    const uint64_t before = job.fabric().stats().messages;
    std::vector<Call*> calls;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < kTensors; ++i) {
        calls.push_back(job.worker(rank).PushPull("t" + std::to_string(i), inputs[rank]));
      }
    }
    ASSERT_TRUE(job.RunUntil(
        [&] { return std::all_of(calls.begin(), calls.end(), [](const Call* call) { return call->ended(); }); }));
    for (const Call* call : calls) {
      ASSERT_TRUE(call->ok()) << call->outcome();
      ASSERT_EQ(call->Output<float>(), sum);
    }
    // Three records of 4 KiB fit into a message of 16 KiB; one message each would be 2000. Pushes fill theirs; a result
    // does not wait for others to come.
    const uint64_t messages = job.fabric().stats().messages - before;
    RecordProperty("messages_of_round_" + std::to_string(round), std::to_string(messages));
    EXPECT_LT(messages, 3u * kTensors) << "round " << round;
  }
  job.Finish();
}

}  // namespace
}  // namespace byteps
