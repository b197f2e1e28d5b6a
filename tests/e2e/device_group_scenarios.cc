#include "tests/e2e/device_group_scenarios.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/device_trainer.h"

namespace byteps {
namespace {

constexpr uint32_t kDtypes[] = {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16,  BPS_INT8,       BPS_UINT8,
                                BPS_INT16,   BPS_INT32,   BPS_INT64,   BPS_COMPLEX64, BPS_COMPLEX128, BPS_BOOL};

size_t BytesOf(uint32_t dtype) { return ((dtype >> 8) & 0xff) / 8; }

bool IsComplex(uint32_t dtype) { return dtype == BPS_COMPLEX64 || dtype == BPS_COMPLEX128; }

template <typename T>
void Store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// `value`: a small integer, which every type represents exactly; integers wrap.
void Encode(uint32_t dtype, int64_t value, std::byte* to) {
  const auto real = static_cast<double>(value);
  std::memset(to, 0, BytesOf(dtype));
  switch (dtype) {
    case BPS_FLOAT32:
    case BPS_COMPLEX64:
      return Store(to, static_cast<float>(real));
    case BPS_FLOAT64:
    case BPS_COMPLEX128:
      return Store(to, real);
    case BPS_BFLOAT16:
      return Store(to, static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(real)) >> 16));
    case BPS_FLOAT16: {
      // A normal number: the exponent is rebiased, the mantissa is cut.
      const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(real));
      return Store(to, static_cast<uint16_t>(value == 0 ? 0 : (bits >> 13) - (112u << 10)));
    }
    case BPS_BOOL:
      return Store(to, static_cast<uint8_t>(value != 0));
    default:
      std::memcpy(to, &value, BytesOf(dtype));
  }
}

// Multiples of `size`, so that averages are integers, too.
int64_t ValueOf(uint32_t dtype, int rank, size_t i, int size) {
  const auto step = static_cast<int64_t>((static_cast<size_t>(rank) + i) % 3);
  return dtype == BPS_BOOL ? step / 2 : size * (1 + step);
}

int64_t Reduced(uint32_t dtype, int32_t operation, size_t i, int size) {
  int64_t result = ValueOf(dtype, 0, i, size);
  for (int rank = 1; rank < size; ++rank) {
    const int64_t value = ValueOf(dtype, rank, i, size);
    if (operation == BPS_SUM || operation == BPS_AVERAGE) result += value;
    if (operation == BPS_PRODUCT) result *= value;
    if (operation == BPS_MIN) result = std::min(result, value);
    if (operation == BPS_MAX) result = std::max(result, value);
  }
  return operation == BPS_AVERAGE ? result / size : result;
}

bool IsNan(uint32_t dtype, const std::byte* element) {
  uint64_t bits = 0;
  std::memcpy(&bits, element, BytesOf(dtype));
  if (dtype == BPS_FLOAT16) return (bits & 0x7FFF) > 0x7C00;
  if (dtype == BPS_BFLOAT16) return (bits & 0x7FFF) > 0x7F80;
  if (dtype == BPS_FLOAT32) return (bits & 0x7FFFFFFF) > 0x7F800000;
  return (bits & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000;
}

bool HasMeaning(uint32_t dtype, int32_t operation) {
  if (operation == BPS_AVERAGE && dtype == BPS_BOOL) return false;
  return !IsComplex(dtype) || (operation != BPS_MIN && operation != BPS_MAX);
}

}  // namespace

void RunGroup() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const std::string way = std::getenv("E2E_GROUP");
  const size_t counts[] = {1, 7, 300, 5000, 200'000, 300'001};
  const int32_t operations[] = {BPS_SUM, BPS_AVERAGE};
  constexpr int kRounds = 6, kWarm = 3;
  fake_gpu_counts warm = {};
  struct Result {
    const float* copy;
    std::vector<float> expected;
  };
  std::vector<Result> results;
  std::vector<float*> memory;
  for (const size_t count : counts) memory.push_back(trainer.on_gpu ? gpu.Allocate(count) : gpu.Host(count));
  uint64_t bytes = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kWarm) warm = gpu.Counts();
    std::vector<bps_request*> requests;
    for (size_t t = 0; t < std::size(counts); ++t) {
      const std::vector<float> values = Values(trainer.info.rank, round, t, counts[t]);
      trainer.on_gpu ? gpu.Write(memory[t], values) : void(std::memcpy(memory[t], values.data(), 4 * counts[t]));
      bps_streams streams = BPS_STREAMS_INIT;
      bps_request* request = nullptr;
      Ok(Submit(trainer, "t" + std::to_string(t), BPS_FLOAT32, counts[t], operations[t % 2], memory[t], &streams,
                &request),
         "push_pull");
      requests.push_back(request);
      bytes += 4 * counts[t];
    }
    for (size_t t = 0; t < std::size(counts); ++t) {
      std::vector<float> expected = Sum(trainer.info.size, round, t, counts[t]);
      if (operations[t % 2] == BPS_AVERAGE) {
        for (float& each : expected) each = each / static_cast<float>(trainer.info.size);
      }
      float* copy = gpu.Host(counts[t]);
      Ok(bps_wait_on_stream(requests[t], trainer.on_gpu ? gpu.stream : nullptr, 0), "wait_on_stream");
      trainer.on_gpu ? gpu.Read(copy, memory[t], counts[t]) : void(std::memcpy(copy, memory[t], 4 * counts[t]));
      results.push_back({copy, std::move(expected)});
      bps_request_free(requests[t]);
    }
  }
  const fake_gpu_counts end = gpu.Counts();
  // The steady state makes nothing. (Pinned memory is the trainer's own; events of two rounds are under way at once.)
  CHECK(end.synchronisations == 0);
  CHECK(end.allocations == warm.allocations);
  CHECK(end.registrations == warm.registrations);
  // Where workers differ, the group stage of the first one to submit makes its streams; which one is first may change.
  const char* rings = std::getenv("BYTEPS_NCCL_NUM_RINGS");
  const uint64_t of_group = 2 + (rings == nullptr ? 1 : static_cast<uint64_t>(std::atoi(rings)));
  CHECK(end.streams == warm.streams || (way == "host memory" && end.streams == warm.streams + of_group));
  CHECK(end.events <= 2 * warm.events + 40);
  // The test itself writes each tensor once.
  const uint64_t to_device = end.bytes_to_device - (trainer.on_gpu ? bytes : 0);
  if (way == "alone") CHECK(to_device == 0);
  if (way == "hosts" && trainer.info.local_size > 1) CHECK(to_device < bytes);
  if (way == "host memory" && trainer.on_gpu) CHECK(to_device == bytes);
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (const Result& result : results) {
    CHECK(std::memcmp(result.copy, result.expected.data(), result.expected.size() * sizeof(float)) == 0);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

void RunGroupDtypes() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  struct Result {
    std::string name;
    const std::byte* copy;
    std::vector<std::byte> expected;
  };
  std::vector<Result> results;
  for (const uint32_t dtype : kDtypes) {
    for (const int32_t operation : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
      if (!HasMeaning(dtype, operation)) continue;
      for (const size_t count : {size_t{3}, size_t{20'001}}) {
        const size_t each = BytesOf(dtype);
        std::vector<std::byte> values(count * each), expected(count * each);
        for (size_t i = 0; i < count; ++i) {
          Encode(dtype, ValueOf(dtype, trainer.info.rank, i, trainer.info.size), &values[i * each]);
          Encode(dtype, Reduced(dtype, operation, i, trainer.info.size), &expected[i * each]);
        }
        void* const memory = gpu.AllocateBytes(values.size());
        gpu.WriteBytes(memory, values);
        const std::string name =
            "dtype" + std::to_string(dtype) + ".op" + std::to_string(operation) + ".count" + std::to_string(count);
        bps_streams streams = BPS_STREAMS_INIT;
        bps_request* request = nullptr;
        Ok(Submit(trainer, name, dtype, count, operation, memory, &streams, &request), name.c_str());
        Ok(bps_wait_on_stream(request, gpu.stream, 0), name.c_str());
        bps_request_free(request);
        std::byte* const copy = gpu.HostBytes(values.size());
        gpu.ReadBytes(copy, memory, values.size());
        results.push_back({name, copy, std::move(expected)});
      }
    }
  }
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (const Result& result : results) {
    if (std::memcmp(result.copy, result.expected.data(), result.expected.size()) != 0) Die(result.name);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

void RunGroupBits() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  std::mt19937_64 random(static_cast<uint64_t>(trainer.info.rank));
  // Only what is the same in every order: minimum and maximum, which keep a NaN.
  const bool in_any_order = std::getenv("E2E_ANY_ORDER") != nullptr;
  struct Result {
    std::string name;
    uint32_t dtype;
    void* memory;
    bps_request* on_gpu;
    bps_request* on_cpu;
    std::byte* copy;
    std::vector<std::byte> expected;
  };
  std::vector<Result> results;
  uint64_t written = 0;
  for (const uint32_t dtype : {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16}) {
    for (const int32_t operation : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
      if (in_any_order && operation != BPS_MIN && operation != BPS_MAX) continue;
      for (const size_t count : {size_t{3}, size_t{7'001}}) {
        // Every pattern is a number: infinities, subnormals and NaNs, too.
        std::vector<std::byte> values(count * BytesOf(dtype));
        for (std::byte& each : values) each = static_cast<std::byte>(random());
        Result& made = results.emplace_back();
        made.name =
            "dtype" + std::to_string(dtype) + ".op" + std::to_string(operation) + ".count" + std::to_string(count);
        made.dtype = dtype;
        made.memory = gpu.AllocateBytes(values.size());
        made.copy = gpu.HostBytes(values.size());
        gpu.WriteBytes(made.memory, values);
        written += values.size();
        bps_streams streams = BPS_STREAMS_INIT;
        Ok(Submit(trainer, made.name, dtype, count, operation, made.memory, &streams, &made.on_gpu), "push_pull");
        made.expected = std::move(values);
        Ok(SubmitOnCpu(trainer, "cpu." + made.name, dtype, count, operation, made.expected.data(), &made.on_cpu),
           "push_pull on the CPU");
      }
    }
  }
  for (const Result& result : results) {
    Ok(bps_wait_on_stream(result.on_gpu, gpu.stream, 0), result.name.c_str());
    gpu.ReadBytes(result.copy, result.memory, result.expected.size());
    Ok(bps_wait(result.on_cpu, 0), result.name.c_str());
    bps_request_free(result.on_gpu);
    bps_request_free(result.on_cpu);
  }
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  const fake_gpu_counts end = gpu.Counts();
  const std::string way = std::getenv("E2E_GROUP");
  if (way == "alone") CHECK(end.bytes_to_device == written);
  if (way == "hosts" && trainer.info.local_size > 1) CHECK(end.bytes_to_device < 2 * written);
  if (way == "host memory") CHECK(end.bytes_to_device == 2 * written);
  for (const Result& result : results) {
    const size_t each = BytesOf(result.dtype);
    for (size_t at = 0; at < result.expected.size(); at += each) {
      const std::byte* const ours = result.copy + at;
      if (std::memcmp(ours, &result.expected[at], each) == 0) continue;
      // Which NaN it is, is not specified.
      if (!IsNan(result.dtype, ours) || !IsNan(result.dtype, &result.expected[at])) {
        Die(result.name + ": element " + std::to_string(at / each));
      }
    }
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

void RunGroupUntilKilled() {
  constexpr size_t kCount = 150'000;
  constexpr int kTensors = 4, kBefore = 3;
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  std::vector<float*> memory;
  for (int t = 0; t < kTensors; ++t) memory.push_back(gpu.Allocate(kCount));
  for (float* each : memory) gpu.Write(each, Values(trainer.info.rank, 0, 0, kCount));
  const auto ended = [](bps_status* status) {
    if (status == nullptr) return false;
    Fails(status, BPS_UNAVAILABLE, "rank 1", "a step after the death of rank 1");
    return true;
  };
  bool over = false;
  for (int round = 0; !over; ++round) {
    if (round == kBefore) {
      std::puts("turning");
      std::fflush(stdout);
    }
    std::vector<bps_request*> requests;
    for (int t = 0; t < kTensors && !over; ++t) {
      bps_streams streams = BPS_STREAMS_INIT;
      bps_request* request = nullptr;
      over = ended(Submit(trainer, "t" + std::to_string(t), BPS_FLOAT32, kCount, BPS_AVERAGE,
                          memory[static_cast<size_t>(t)], &streams, &request));
      if (!over) requests.push_back(request);
    }
    for (bps_request* request : requests) {
      over |= ended(bps_wait(request, 60'000));
      bps_request_free(request);
    }
  }
  Ok(bps_close(trainer.session), "close");
  gpu.ExpectNoRaces();
}

void RunGroupStuck(const std::string& expected) {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  float* const memory = gpu.Allocate(1000);
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, 1000));
  bps_streams streams = BPS_STREAMS_INIT;
  bps_push_pull_args args = trainer.PushPull("w", 1000, memory, &streams);
  args.timeout_ms = 4'000;
  bps_request* request = nullptr;
  Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
  bps_status* const outcome = bps_wait(request, 90'000);
  const int32_t code = bps_status_code(outcome);
  std::printf("rank %d: code %d: %s\n", trainer.info.rank, code, bps_status_message(outcome));
  std::fflush(stdout);
  CHECK(code == BPS_DEADLINE_EXCEEDED || code == BPS_UNAVAILABLE || code == BPS_ABORTED);
  if (trainer.info.rank == 1) CHECK(std::string(bps_status_message(outcome)).find(expected) != std::string::npos);
  bps_status_free(outcome);
  bps_request_free(request);
  // Where the session goes on, the others are waited for; where it has failed this says so.
  bps_status_free(bps_shutdown(trainer.session, 30'000));
  Ok(bps_close(trainer.session), "close");
}

}  // namespace byteps
