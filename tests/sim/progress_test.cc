// No order is required, memory is bounded, nothing deadlocks.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

// No ping helps: what is forgotten stays forgotten, and is found.
JobOptions WithoutPings(uint64_t seed) {
  JobOptions options;
  options.seed = seed;
  options.heartbeat = 1000 * kSecond;
  options.peer_timeout = 3000 * kSecond;
  return options;
}

// Tensors of a few sizes, the inputs of all ranks, and their sums.
struct Model {
  Model(SimulatedJob* job, size_t tensors, size_t most_elements) {
    for (size_t t = 0; t < tensors; ++t) {
      const size_t elements = 1 + job->fabric().random().Below(most_elements);
      std::vector<std::vector<float>> of_ranks;
      for (uint32_t w = 0; w < job->workers(); ++w) of_ranks.push_back(job->Numbers(elements));
      sums.push_back(SimulatedJob::Sum(of_ranks));
      inputs.push_back(std::move(of_ranks));
    }
  }
  std::vector<size_t> ShuffledOrder(SimulatedJob* job) const {
    std::vector<size_t> order(sums.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[job->fabric().random().Below(i)]);
    return order;
  }
  std::vector<std::vector<std::vector<float>>> inputs;  // tensor, rank
  std::vector<std::vector<float>> sums;
};

// Submits the model in this order on this rank.
std::vector<std::pair<size_t, Call*>> Submit(SimulatedJob* job, uint32_t rank, const Model& model,
                                             const std::vector<size_t>& order) {
  std::vector<std::pair<size_t, Call*>> calls;
  for (const size_t t : order) {
    calls.emplace_back(t, job->worker(rank).PushPull("t" + std::to_string(t), model.inputs[t][rank]));
    EXPECT_NE(calls.back().second, nullptr);
  }
  return calls;
}

void ExpectSums(SimulatedJob* job, const Model& model, const std::vector<std::pair<size_t, Call*>>& calls,
                Time limit = 30 * kSecond) {
  ASSERT_TRUE(job->RunUntil(
      [&] { return std::all_of(calls.begin(), calls.end(), [](const auto& call) { return call.second->ended(); }); },
      limit));
  for (const auto& [t, call] : calls) {
    ASSERT_TRUE(call->ok()) << call->name << ": " << call->outcome();
    ASSERT_EQ(call->Output<float>(), model.sums[t]) << call->name;
  }
}

void Append(std::vector<std::pair<size_t, Call*>>* all, std::vector<std::pair<size_t, Call*>> more) {
  all->insert(all->end(), more.begin(), more.end());
}

// Design invariant 2, to the letter.
TEST(Progress, ReversedOrdersWithCreditForOnePartitionAndAWindowOfOneSlot) {
  ForEachSeed(150, [](uint64_t seed) {
    JobOptions options = WithoutPings(seed);
    options.workers = 2;
    options.partition_bytes = 4096;
    options.slot_bytes = 4096;
    options.slots_per_peer = 1;
    options.window_slots = 1;
    options.bounce_blocks = 1;
    options.credit = 4096;
    options.server_memory = 64 << 10;
    options.inline_bytes = 0;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const Model model(&job, 12, 8000);
    std::vector<size_t> order(model.sums.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    auto calls = Submit(&job, 0, model, order);
    std::reverse(order.begin(), order.end());
    Append(&calls, Submit(&job, 1, model, order));
    ExpectSums(&job, model, calls);
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Progress, ManyTensorsInRandomOrderWithLittleServerMemory) {
  ForEachSeed(80, [](uint64_t seed) {
    sim::Random random(seed);
    JobOptions options = WithoutPings(seed);
    options.workers = static_cast<uint32_t>(random.Between(2, 4));
    options.servers = static_cast<uint32_t>(random.Between(1, 2));
    options.slots_per_peer = static_cast<uint32_t>(random.Between(1, 3));
    options.server_memory = 64 << 10;
    options.inline_bytes = random.Chance(0.5) ? 0 : 256;
    options.credit = random.Chance(0.5) ? 8192 : 0;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const Model model(&job, 60, 6000);
    std::vector<std::pair<size_t, Call*>> calls;
    for (uint32_t w = 0; w < job.workers(); ++w) Append(&calls, Submit(&job, w, model, model.ShuffledOrder(&job)));
    ExpectSums(&job, model, calls);
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

// Every member goes at its own speed through many rounds; a member that has a result goes on.
TEST(Progress, ManyRoundsAtDifferentSpeeds) {
  ForEachSeed(80, [](uint64_t seed) {
    JobOptions options = WithoutPings(seed);
    options.workers = 3;
    options.servers = 2;
    options.server_memory = 128 << 10;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const Model model(&job, 4, 4000);
    constexpr int kRounds = 15;
    std::map<std::pair<uint32_t, size_t>, std::pair<int, Call*>> running;  // by rank and tensor
    for (uint32_t w = 0; w < 3; ++w) {
      for (size_t t = 0; t < model.sums.size(); ++t) running[{w, t}] = {0, nullptr};
    }
    bool wrong = false;
    ASSERT_TRUE(job.RunUntil(
        [&] {
          bool all = true;
          for (auto& [who, what] : running) {
            auto& [round, call] = what;
            if (call != nullptr && !call->ended()) {
              all = false;
              continue;
            }
            if (call != nullptr) {
              wrong = wrong || !call->ok() || call->Output<float>() != model.sums[who.second];
              EXPECT_TRUE(call->ok()) << call->outcome();
              call = nullptr;
              ++round;
            }
            if (wrong || round == kRounds) continue;
            call =
                job.worker(who.first).PushPull("t" + std::to_string(who.second), model.inputs[who.second][who.first]);
            EXPECT_NE(call, nullptr);
            all = false;
          }
          return all || wrong;
        },
        30 * kSecond));
    ASSERT_FALSE(wrong);
    job.Finish();
  });
}

TEST(Progress, ALateWorkerIsWaitedFor) {
  ForEachSeed(40, [](uint64_t seed) {
    JobOptions options = WithoutPings(seed);
    options.workers = 3;
    options.servers = 2;
    options.start_at["worker1"] = 65 * kSecond;
    options.start_timeout = 100 * kSecond;
    options.start_at["coordinator"] = 5 * kSecond;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    EXPECT_GE(job.fabric().now(), 65 * kSecond);
    const Model model(&job, 5, 4000);
    auto calls = Submit(&job, 0, model, model.ShuffledOrder(&job));
    Append(&calls, Submit(&job, 2, model, model.ShuffledOrder(&job)));
    job.RunFor(10 * kSecond);  // late again
    for (const auto& [t, call] : calls) EXPECT_FALSE(call->ended()) << call->name;
    Append(&calls, Submit(&job, 1, model, model.ShuffledOrder(&job)));
    ExpectSums(&job, model, calls);
    if (!::testing::Test::HasFatalFailure()) job.Finish();
  });
}

TEST(Progress, ABarrierEndsWhenAllHaveCome) {
  ForEachSeed(40, [](uint64_t seed) {
    JobOptions options = WithoutPings(seed);
    options.workers = 3;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    job.worker(0).Barrier("b", 60 * kSecond);
    job.worker(1).Barrier("b", 60 * kSecond);
    job.RunFor(5 * kSecond);
    EXPECT_FALSE(job.worker(0).barrier("b").has_value());
    job.worker(2).Barrier("b", 60 * kSecond);
    ASSERT_TRUE(job.RunUntil(
        [&] { return job.worker(0).barrier("b") && job.worker(1).barrier("b") && job.worker(2).barrier("b"); }));
    for (uint32_t w = 0; w < 3; ++w) EXPECT_TRUE(job.worker(w).barrier("b")->ok()) << *job.worker(w).barrier("b");
    job.Finish();
  });
}

}  // namespace
}  // namespace byteps
