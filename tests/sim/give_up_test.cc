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
    for (uint32_t w = 0; w < job->workers(); ++w) order.emplace_back(&tensor, w);
  }
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  for (const auto& [tensor, w] : order) {
    Ask ask = AskOf(job, tensor);
    if (tensor->disturbed && random.Chance(0.3)) ask.timeout = random.Between(1, 300) * kMillisecond;
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

}  // namespace
}  // namespace byteps
