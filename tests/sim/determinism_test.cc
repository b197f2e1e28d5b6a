// The bits of a result are a function of the inputs and the groups alone: not of the network, the order of anything,
// the cut or the number of servers.

#include <cstring>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/reduce.h"
#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

bool AllOk(const std::vector<Call*>& calls) {
  for (const Call* call : calls) {
    if (!call->ended()) return false;
  }
  return true;
}

TEST(Determinism, SumsAreTheRankOrderFoldWhateverTheNetworkTheCutAndTheServers) {
  ForEachSeed(200, [](uint64_t seed) {
    sim::Random random(seed);
    JobOptions options;
    options.seed = seed;
    options.workers = static_cast<uint32_t>(random.Between(2, 4));
    options.servers = random.Chance(0.5) ? 1 : 3;
    options.lanes = static_cast<uint32_t>(random.Between(1, 2));
    options.partition_bytes = 512u << random.Below(5);
    options.slot_bytes = 8192;
    options.slots_per_peer = static_cast<uint32_t>(random.Between(1, 4));
    options.inline_bytes = random.Chance(0.5) ? 0 : 1024;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const size_t sizes[] = {1, 3, 100, 1000, 5000, 20000};
    std::vector<Call*> calls;
    std::vector<std::vector<float>> expected;
    for (const size_t size : sizes) {
      std::vector<std::vector<float>> inputs;
      for (uint32_t w = 0; w < job.workers(); ++w) inputs.push_back(job.Numbers(size));
      for (uint32_t w = 0; w < job.workers(); ++w) {
        calls.push_back(job.worker(w).PushPull("t" + std::to_string(size), inputs[w]));
        ASSERT_NE(calls.back(), nullptr);
        expected.push_back(SimulatedJob::Sum(inputs));
      }
    }
    ASSERT_TRUE(job.RunUntil([&] { return AllOk(calls); }));
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(calls[i]->ok()) << calls[i]->name << ": " << calls[i]->outcome();
      ASSERT_EQ(calls[i]->Output<float>(), expected[i]) << calls[i]->name;
    }
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
    options.partition_bytes = 1024;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    const std::vector<uint32_t> groups = {2, 2};
    std::vector<Call*> calls;
    std::vector<std::vector<std::byte>> expected;
    for (const uint32_t dtype :
         {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16, BPS_INT8, BPS_UINT8, BPS_INT32, BPS_INT64}) {
      for (const int32_t reduction : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
        const size_t elements = 700, bytes = elements * DtypeSize(dtype);
        std::vector<std::vector<std::byte>> inputs(4, std::vector<std::byte>(bytes));
        for (auto& input : inputs) {
          for (std::byte& byte : input) byte = static_cast<std::byte>(job.fabric().random().Next() & 0x3f);
        }
        const void* pointers[] = {inputs[0].data(), inputs[1].data(), inputs[2].data(), inputs[3].data()};
        std::vector<std::byte> result(bytes);
        Reduce({dtype, reduction}, pointers, groups, result.data(), elements);
        for (uint32_t w = 0; w < 4; ++w) {
          Ask ask;
          ask.name = std::to_string(dtype) + "/" + std::to_string(reduction);
          ask.dtype = dtype;
          ask.shape = {7, 100};
          ask.input = inputs[w];
          ask.reduction = reduction;
          calls.push_back(job.worker(w).Submit(ask));
          ASSERT_NE(calls.back(), nullptr);
          expected.push_back(result);
        }
      }
    }
    ASSERT_TRUE(job.RunUntil([&] { return AllOk(calls); }));
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(calls[i]->ok()) << calls[i]->name << ": " << calls[i]->outcome();
      ASSERT_TRUE(calls[i]->output == expected[i]) << calls[i]->name;
    }
    job.Finish();
  });
}

TEST(Determinism, ABroadcastIsTheRootsInput) {
  ForEachSeed(60, [](uint64_t seed) {
    JobOptions options;
    options.seed = seed;
    options.workers = 3;
    options.servers = 2;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    std::vector<Call*> calls;
    std::vector<std::vector<float>> expected;
    for (int32_t root = 0; root < 3; ++root) {
      for (const size_t size : {size_t{1}, size_t{10'000}}) {
        const std::vector<float> value = job.Numbers(size);
        for (uint32_t w = 0; w < 3; ++w) {
          Ask ask;
          ask.name = "b" + std::to_string(root) + "." + std::to_string(size);
          ask.shape = {static_cast<int64_t>(size)};
          ask.kind = wire::Operation::kBroadcast;
          ask.root = root;
          ask.input.resize(size * 4);
          if (w == static_cast<uint32_t>(root)) std::memcpy(ask.input.data(), value.data(), size * 4);
          calls.push_back(job.worker(w).Submit(ask));
          ASSERT_NE(calls.back(), nullptr);
          expected.push_back(value);
        }
      }
    }
    ASSERT_TRUE(job.RunUntil([&] { return AllOk(calls); }));
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(calls[i]->ok()) << calls[i]->name << ": " << calls[i]->outcome();
      ASSERT_EQ(calls[i]->Output<float>(), expected[i]) << calls[i]->name;
    }
    job.Finish();
  });
}

uint64_t FingerprintOf(uint64_t seed) {
  JobOptions options;
  options.seed = seed;
  options.workers = 3;
  options.servers = 2;
  SimulatedJob job(options);
  EXPECT_TRUE(job.Start());
  std::vector<Call*> calls;
  for (int tensor = 0; tensor < 10; ++tensor) {
    for (uint32_t w = 0; w < 3; ++w) {
      calls.push_back(job.worker(w).PushPull("t" + std::to_string(tensor), job.Numbers(3000)));
    }
  }
  EXPECT_TRUE(job.RunUntil([&] { return AllOk(calls); }));
  return job.fabric().Fingerprint();
}

TEST(Determinism, TheSameSeedIsTheSameRun) {
  for (uint64_t seed = 1; seed <= 10; ++seed) EXPECT_EQ(FingerprintOf(seed), FingerprintOf(seed)) << seed;
}

}  // namespace
}  // namespace byteps
