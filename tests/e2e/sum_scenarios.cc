// Sums of all kinds, in all orders, and what they cost.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "tests/e2e/scenarios.h"
#include "tests/e2e/trainer.h"

namespace byteps::e2e {
namespace {

double CpuSeconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

}  // namespace

void Sums() {
  bps_session* session = Open();
  const bps_info info = Info(session);
  for (uint32_t dtype : kDtypes) {
    for (int32_t op = BPS_SUM; op <= BPS_PRODUCT; ++op) {
      for (size_t elements : {0, 1, 3, 1000, 70000}) CheckSum(session, info, dtype, op, elements, op == BPS_AVERAGE);
    }
  }
  for (size_t bytes :
       {size_t{4}, size_t{8192}, size_t{8196}, size_t{1} << 20, (size_t{4} << 20) + 4, size_t{64} << 20}) {
    CheckSum(session, info, BPS_FLOAT32, BPS_SUM, bytes / 4, false);
  }
  End(session);
}

void FewFiles(int files) {
  const rlimit limit = {static_cast<rlim_t>(files), static_cast<rlim_t>(files)};
  CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  Sums();
}

void Orders(int rounds) {
  bps_session* session = Open();
  const bps_info info = Info(session);
  constexpr size_t kTensors = 30;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::vector<uint8_t>> values;
    std::vector<bps_request*> requests;
    for (size_t i = 0; i < kTensors; ++i) values.push_back(Input(BPS_FLOAT32, 1 + i * i * 700, info.rank, i + 100));
    for (size_t i = 0; i < kTensors; ++i) {
      const size_t k = (info.rank % 2 == 0 ? i : kTensors - 1 - i);
      bps_tensor* tensor =
          Declare(session, "o" + std::to_string(k), BPS_FLOAT32, static_cast<int64_t>(values[k].size() / 4));
      requests.push_back(Start(session, tensor, values[k].data(), values[k].data(), BPS_SUM));
    }
    for (bps_request* request : requests) {
      const Error error = Wait(request);
      if (error.code != BPS_OK) Die(error.message);
    }
    for (size_t i = 0; i < kTensors; ++i) {
      CHECK(values[i] == Expected(BPS_FLOAT32, BPS_SUM, 1 + i * i * 700, info.size, i + 100));
    }
  }
  End(session);
}

void Broadcasts() {
  bps_session* session = Open();
  const bps_info info = Info(session);
  for (int root = 0; root < info.size; ++root) {
    for (size_t elements : {0, 1, 5000, 3000000}) {
      const std::vector<uint8_t> source = Input(BPS_FLOAT32, elements, root, 9);
      std::vector<uint8_t> values(elements * 4, 0xee);
      bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
      args.tensor = Declare(session, "b" + std::to_string(root) + "." + std::to_string(elements), BPS_FLOAT32,
                            static_cast<int64_t>(elements));
      args.input = info.rank == root ? source.data() : nullptr;
      args.output = values.data();
      args.root = root;
      bps_request* request = nullptr;
      Ok(bps_broadcast(session, &args, &request), "bps_broadcast");
      const Error error = Wait(request);
      if (error.code != BPS_OK) Die(error.message);
      CHECK(values == source);
    }
  }
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  for (int i = 0; i < 10; ++i) Ok(bps_barrier(session, &barrier), "bps_barrier");
  End(session);
}

void Sessions() {
  const auto open = [](const char* name) {
    bps_open_args args = BPS_OPEN_ARGS_INIT;
    args.name = name;
    bps_session* session = nullptr;
    Ok(bps_open(&args, &session), "bps_open");
    return session;
  };
  bps_session* one = open("one");
  bps_session* two = open("two");
  for (int i = 0; i < 20; ++i) {
    CheckSum(one, Info(one), BPS_FLOAT32, BPS_SUM, 30000, false);
    CheckSum(two, Info(two), BPS_FLOAT32, BPS_MAX, 30000, false);
  }
  End(one);
  CheckSum(two, Info(two), BPS_INT32, BPS_SUM, 100, false);
  End(two);
}

void Altered() {
  constexpr size_t kElements = 300'000;
  bps_session* session = Open();
  const bps_info info = Info(session);
  bps_tensor* tensor = Declare(session, "altered", BPS_FLOAT32, kElements);
  for (int round = 0; round < 12; ++round) {
    std::vector<float> values(kElements, static_cast<float>(info.rank + round));
    const Error error = PushPull(session, tensor, values.data(), values.data(), BPS_SUM);
    if (error.code != BPS_OK) {
      if (error.code != BPS_DATA_LOSS) Die("error " + std::to_string(error.code) + ": " + error.message);
      std::printf("error %d: %s\n", error.code, error.message.c_str());
      continue;
    }
    const float expected = static_cast<float>(info.size * (info.size - 1) / 2 + info.size * round);
    for (const float value : values) CHECK(value == expected);
  }
  End(session);
}

void Latency(int rounds) {
  bps_session* session = Open();
  bps_tensor* tensor = Declare(session, "small", BPS_FLOAT32, 1);
  float value = 1;
  std::vector<double> micros;
  for (int round = 0; round < rounds; ++round) {
    const auto began = Clock::now();
    const Error error = PushPull(session, tensor, &value, &value, BPS_AVERAGE);
    if (error.code != BPS_OK) Die(error.message);
    micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
  }
  CHECK(value == 1);
  std::sort(micros.begin(), micros.end());
  std::printf("4 B: median %.1f us, p99 %.1f us\n", micros[micros.size() / 2], micros[micros.size() * 99 / 100]);
  // Not the median: on a loaded machine most rounds wait for a processor. What waits for a timer does so in every
  // round.
  CHECK(micros[micros.size() / 10] < 5000);
  End(session);
}

void Bandwidth() {
  bps_session* session = Open();
  for (size_t bytes : {size_t{64} << 10, size_t{1} << 20, size_t{16} << 20, size_t{64} << 20}) {
    std::vector<float> input(bytes / 4, 1), output(bytes / 4);
    bps_tensor* tensor = Declare(session, "b" + std::to_string(bytes), BPS_FLOAT32, static_cast<int64_t>(input.size()));
    const int rounds = static_cast<int>((size_t{256} << 20) / bytes);
    for (int round = 0; round < 2; ++round)
      CHECK(PushPull(session, tensor, input.data(), output.data(), BPS_SUM).code == BPS_OK);
    const double cpu = CpuSeconds();
    const auto began = Clock::now();
    for (int round = 0; round < std::min(rounds, 200); ++round) {
      CHECK(PushPull(session, tensor, input.data(), output.data(), BPS_SUM).code == BPS_OK);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count() / std::min(rounds, 200);
    std::printf("%zu B: %.3f ms, %.2f GB/s, %.2f cpu s/GB\n", bytes, seconds * 1e3,
                static_cast<double>(bytes) / seconds / 1e9,
                (CpuSeconds() - cpu) / std::min(rounds, 200) / static_cast<double>(bytes) * 1e9);
  }
  End(session);
}

}  // namespace byteps::e2e
