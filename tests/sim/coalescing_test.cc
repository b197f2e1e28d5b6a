// Many small tensors, submitted one by one without waiting: their records share messages, both ways.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

// What was sent in a round, in the mean of five, with 500 tensors of 4 KiB from each of two workers. Three records fit
// into a message of 16 KiB, so 167 messages of a worker and 334 of the server are the least; a message for each record
// would be 500 and 1000.
struct Messages {
  double of_a_worker = 0;
  double of_the_server = 0;
};

Messages InARound(uint64_t seed, uint64_t bytes_per_second) {
  constexpr int kTensors = 500, kRounds = 5;
  constexpr Messages kFailed = {1e9, 1e9};
  JobOptions options;
  options.seed = seed;
  options.adverse = false;
  options.in_place = false;
  options.inline_bytes = 8192;
  options.slot_bytes = options.partition_bytes = 64 << 10;
  options.endpoint.receive_pool = 64;
  options.endpoint.bytes_per_second = bytes_per_second;
  options.scheduler = "credit";
  SimulatedJob job(options);
  if (!job.Start()) return kFailed;
  const std::vector<std::vector<float>> inputs = {job.Numbers(1024), job.Numbers(1024)};
  const std::vector<float> sum = SimulatedJob::Sum(inputs);
  std::map<std::string, uint64_t> before = job.fabric().stats().sent_messages;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Call*> calls;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < kTensors; ++i) {
        calls.push_back(job.worker(rank).PushPull("t" + std::to_string(i), inputs[rank]));
      }
    }
    if (!job.RunUntilEnded(calls)) return kFailed;
    for (const Call* call : calls) {
      EXPECT_TRUE(call->ok()) << call->outcome();
      EXPECT_EQ(call->Output<float>(), sum);
    }
  }
  const auto sent = [&](const std::string& node) {
    return static_cast<double>(job.fabric().stats().sent_messages.at(node) - before[node]) / kRounds;
  };
  const Messages messages = {(sent("worker0") + sent("worker1")) / 2, sent("server0")};
  job.Finish();
  return messages;
}

// A link that no member waits for: what shares a message is what a process has at hand when it comes to send.
TEST(Coalescing, FiveHundredSmallTensorsShareMessages) {
  ForEachSeed(8, [](uint64_t seed) {
    const Messages messages = InARound(seed, 0);
    EXPECT_LE(messages.of_a_worker, 235);
    EXPECT_LE(messages.of_the_server, 356);
  });
}

// On a link of 200 Mbit/s there are always more at hand, and nearly all messages are full.
TEST(Coalescing, OnASlowLinkMessagesAreFull) {
  ForEachSeed(8, [](uint64_t seed) {
    const Messages messages = InARound(seed, 25'000'000);
    EXPECT_LE(messages.of_a_worker, 177);
    EXPECT_LE(messages.of_the_server, 350);
  });
}

}  // namespace
}  // namespace byteps
