// Rounds that are given up by any member, at any moment, while cuts change: what was not given up is right, everything
// ends, no member touches memory that was given back, and nothing is left.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/exchanges.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

// Through servers, on one host, or on several; in many small parts, or in parts whose size changes.
JobOptions Options(uint64_t seed) {
  sim::Random random(seed);
  JobOptions options;
  options.seed = seed;
  const uint64_t shape = random.Below(3);
  options.workers = 3;
  options.servers = shape == 1 ? 0 : static_cast<uint32_t>(random.Between(1, 2));
  if (shape == 1) options.workers_per_host = 3;
  if (shape == 2) {
    options.hosts = {2, static_cast<uint32_t>(random.Between(1, 3))};
    options.workers = options.hosts[0] + options.hosts[1];
  }
  options.local = shape != 0;
  options.groups = shape == 0 ? "none" : "host";
  options.copy_refused = shape != 0 && random.Chance(0.3);
  options.inline_bytes = random.Chance(0.3) ? 0 : 1024;
  if (random.Chance(0.5)) {
    options.partition_bytes = 0;
    options.slot_bytes = 512 << 10;
    options.server_memory = 64 << 20;
  }
  return options;
}

struct Tensor {
  std::string name;
  size_t size;
  std::vector<float> sum;
  std::vector<Call*> calls;
  bool disturbed = false;
  bool given_up = false;  // a rank takes no part in this round
};

// Whole numbers: their sum is the same in every order.
Ask AskOf(SimulatedJob* job, Tensor* tensor) {
  Ask ask = FloatAsk(tensor->name, tensor->size);
  for (size_t i = 0; i < tensor->size; ++i) {
    const auto number = static_cast<float>(job->fabric().random().Between(-1000, 1000));
    tensor->sum[i] += number;
    std::memcpy(ask.input.data() + i * sizeof number, &number, sizeof number);
  }
  return ask;
}

void Pause(SimulatedJob* job, Time most) { job->RunFor(job->fabric().random().Between(0, most / 1000) * 1000); }

void OneRound(SimulatedJob* job, std::vector<Tensor>* tensors) {
  sim::Random& random = job->fabric().random();
  std::vector<std::pair<Tensor*, uint32_t>> order;
  for (Tensor& tensor : *tensors) {
    tensor.sum.assign(tensor.size, 0);
    tensor.calls.clear();
    tensor.disturbed = random.Chance(0.4);
    tensor.given_up = false;
    for (uint32_t w = 0; w < job->workers(); ++w) order.emplace_back(&tensor, w);
  }
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  for (const auto& [tensor, w] : order) {
    Ask ask = AskOf(job, tensor);
    if (tensor->disturbed && random.Chance(0.3)) ask.timeout = random.Between(1, 300) * kMillisecond;
    if (tensor->disturbed && random.Chance(0.15)) {
      ask.given_up = absl::CancelledError("for a test");
      tensor->given_up = true;
    }
    tensor->calls.push_back(job->worker(w).Submit(ask));
    ASSERT_NE(tensor->calls.back(), nullptr);
    if (random.Chance(0.3)) Pause(job, 20 * kMillisecond);
    if (tensor->disturbed && random.Chance(0.2)) job->worker(w).Cancel(tensor->calls.back());
  }
  for (int times = 0; times < 4; ++times) {
    Pause(job, 10 * kMillisecond);
    const auto& [tensor, w] = order[random.Below(order.size())];
    if (!tensor->disturbed) continue;
    for (Call* call : tensor->calls) {
      if (!call->ended() && random.Chance(0.3)) {
        for (uint32_t who = 0; who < job->workers(); ++who) job->worker(who).Cancel(call);  // whose it is
      }
    }
  }
  for (const Tensor& tensor : *tensors) {
    ASSERT_TRUE(job->RunUntil([&] {
      return std::all_of(tensor.calls.begin(), tensor.calls.end(), [](const Call* c) { return c->ended(); });
    })) << tensor.name;
    for (const Call* call : tensor.calls) {
      ASSERT_FALSE(tensor.given_up && call->ok()) << tensor.name;
      if (tensor.disturbed && !call->ok()) continue;
      ASSERT_TRUE(call->ok()) << tensor.name << ": " << call->outcome();
      ASSERT_TRUE(call->Output<float>() == tensor.sum) << tensor.name << (tensor.disturbed ? ", disturbed" : "");
    }
  }
}

TEST(GiveUp, AnyMemberAtAnyMoment) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job(Options(seed));
    ASSERT_TRUE(job.Start());
    sim::Random& random = job.fabric().random();
    std::vector<Tensor> tensors;
    for (const size_t size : {size_t{40'000} + random.Below(20'000), 1 + random.Below(20'000), 1 + random.Below(300)}) {
      tensors.push_back({"t" + std::to_string(tensors.size()), size, {}, {}});
    }
    for (int round = 0; round < 10; ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      OneRound(&job, &tensors);
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.Finish();
  });
}

// Rounds that a rank gives up come behind the one that is in flight, whatever the others do meanwhile.
TEST(GiveUp, BehindTheOperationInFlight) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job(Options(seed));
    ASSERT_TRUE(job.Start());
    sim::Random& random = job.fabric().random();
    const size_t size = random.Chance(0.5) ? 1 + random.Below(300) : 40'000;
    const auto rounds = static_cast<size_t>(random.Between(1, 3));
    const auto values = [&](float value) { return std::vector<float>(size, value); };
    const auto all_end = [&](const std::vector<Call*>& calls) {
      return job.RunUntil(
          [&] { return std::all_of(calls.begin(), calls.end(), [](const Call* call) { return call->ended(); }); });
    };
    for (int repeat = 0; repeat < 3; ++repeat) {
      SCOPED_TRACE("repeat " + std::to_string(repeat));
      std::vector<Call*> first = {job.worker(0).PushPull("t", values(1))}, given_up;
      for (size_t i = 0; i < rounds; ++i) {
        Ask ask = FloatAsk("t", size);
        ask.given_up = absl::CancelledError("the step ended half-way");
        given_up.push_back(job.worker(0).Submit(ask));
        ASSERT_NE(given_up.back(), nullptr) << "it is never refused for what is in flight";
      }
      absl::Status refused;
      EXPECT_EQ(job.worker(0).Submit(FloatAsk("t", size), &refused), nullptr);
      EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists) << refused;
      Pause(&job, 20 * kMillisecond);
      EXPECT_FALSE(given_up.front()->ended()) << "its turn has not come";
      for (uint32_t w = 1; w < job.workers(); ++w) first.push_back(job.worker(w).PushPull("t", values(1)));
      ASSERT_TRUE(all_end(first));
      for (const Call* call : first) {
        ASSERT_TRUE(call->ok()) << call->outcome();
        EXPECT_EQ(call->Output<float>(), values(static_cast<float>(job.workers())));
      }
      ASSERT_TRUE(all_end(given_up));
      for (const Call* call : given_up) EXPECT_EQ(call->outcome().code(), absl::StatusCode::kCancelled);
      for (size_t i = 0; i < rounds; ++i) {
        std::vector<Call*> lost;
        for (uint32_t w = 1; w < job.workers(); ++w) lost.push_back(job.worker(w).PushPull("t", values(7)));
        ASSERT_TRUE(all_end(lost));
        for (const Call* call : lost) EXPECT_EQ(call->outcome().code(), absl::StatusCode::kAborted) << call->outcome();
        // Of several, servers know why the last was given up.
        if (i + 1 < rounds) continue;
        EXPECT_NE(lost[0]->outcome().message().find("the step ended half-way"), std::string::npos)
            << lost[0]->outcome();
      }
      std::vector<Call*> last;
      for (uint32_t w = 0; w < job.workers(); ++w) last.push_back(job.worker(w).PushPull("t", values(2)));
      ASSERT_TRUE(all_end(last));
      for (const Call* call : last) {
        ASSERT_TRUE(call->ok()) << call->outcome();
        EXPECT_EQ(call->Output<float>(), values(static_cast<float>(2 * job.workers())));
      }
    }
    job.Finish();
  });
}

// The session ends while rounds wait for their turn: they end with it.
TEST(GiveUp, WaitingWhenTheSessionFails) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    SimulatedJob job(Options(seed));
    ASSERT_TRUE(job.Start());
    Call* in_flight = job.worker(0).PushPull("t", std::vector<float>(100, 1));
    Ask ask = FloatAsk("t", 100);
    ask.given_up = absl::CancelledError("for a test");
    Call* waits = job.worker(0).Submit(ask);
    ASSERT_NE(waits, nullptr);
    Pause(&job, 20 * kMillisecond);
    job.fabric().Kill("worker1", sim::Death::kNoticed);
    ASSERT_TRUE(job.RunUntil([&] { return in_flight->ended() && waits->ended(); }));
    EXPECT_EQ(waits->outcome().code(), absl::StatusCode::kUnavailable) << waits->outcome();
  }
}

}  // namespace
}  // namespace byteps
