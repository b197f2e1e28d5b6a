#include "tests/e2e/device_cast_scenarios.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/reduce/dtype.h"
#include "tests/e2e/device_trainer.h"

namespace byteps {
namespace {

uint16_t Cast(uint32_t dtype, float value) {
  return dtype == BPS_FLOAT16 ? ToFloat16(value).bits : ToBFloat16(value).bits;
}

float Widen(uint32_t dtype, uint16_t bits) {
  return dtype == BPS_FLOAT16 ? ToFloat(Float16{bits}) : ToFloat(BFloat16{bits});
}

// Numbers that no 16 bits hold.
std::vector<float> Numbers(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> between(-3, 3);
  std::vector<float> numbers(count);
  for (float& each : numbers) each = between(random);
  return numbers;
}

struct Ends {
  bps_streams streams = BPS_STREAMS_INIT;
  bps_cast cast = BPS_CAST_INIT;
};

// The arguments of a cast in the trainer's stream.
void UseCast(const Trainer& trainer, Ends* ends, bps_push_pull_args* args) {
  args->input_device = args->output_device = BPS_CUDA;
  ends->streams.input = ends->streams.output = trainer.gpu.stream;
  ends->cast.dtype = BPS_FLOAT32;
  ends->streams.ext.next = &ends->cast.ext;
  args->ext = &ends->streams.ext;
}

// A CUDA plugin whose build has no kernels, on its stand-in driver, says so.
bool CastsAreThere(const Trainer& trainer) {
  if (!trainer.on_gpu) return true;
  bps_push_pull_args args = PushPullArgs(trainer, "probe", BPS_FLOAT16, 0, BPS_SUM, trainer.gpu.Allocate(1));
  Ends ends;
  UseCast(trainer, &ends, &args);
  bps_request* request = nullptr;
  bps_status* const refused = bps_push_pull(trainer.session, &args, &request);
  if (refused == nullptr) {
    Ok(bps_wait(request, 0), "wait for nothing");
    bps_request_free(request);
    return true;
  }
  CHECK(std::getenv("E2E_GPUS") != nullptr && bps_status_code(refused) == BPS_UNIMPLEMENTED);
  CHECK(std::string(bps_status_message(refused)).find("built without its kernels") != std::string::npos);
  bps_status_free(refused);
  return false;
}

void CastErrors(const Trainer& trainer) {
  float* const memory = trainer.gpu.Allocate(1000);
  const auto ask = [&](uint32_t dtype, int32_t code, const std::string& text, const auto& change) {
    bps_push_pull_args args = PushPullArgs(trainer, "wrong", dtype, 1000, BPS_SUM, memory);
    Ends ends;
    UseCast(trainer, &ends, &args);
    change(&args, &ends.cast);
    Fails(bps_push_pull(trainer.session, &args, nullptr), code, text, text.c_str());
  };
  ask(BPS_FLOAT64, BPS_INVALID_ARGUMENT, "memory of float32 is cast", [](auto*, auto*) {});
  ask(BPS_FLOAT16, BPS_INVALID_ARGUMENT, "bps_cast of int32", [](auto*, auto* cast) { cast->dtype = BPS_INT32; });
  ask(BPS_FLOAT16, BPS_INVALID_ARGUMENT, "reserved is 1", [](auto*, auto* cast) { cast->reserved = 1; });
  ask(BPS_FLOAT16, BPS_UNIMPLEMENTED, "memory of the host", [](auto* args, auto*) { args->output_device = BPS_CPU; });
  ask(BPS_FLOAT16, BPS_UNIMPLEMENTED, "memory of the host",
      [](auto* args, auto*) { args->input_device = BPS_CUDA_HOST; });
  // It is as long as its own elements are.
  ask(BPS_FLOAT16, BPS_INVALID_ARGUMENT, "4000 bytes reaches 2000 bytes beyond",
      [&](auto* args, auto*) { args->input = args->output = memory + 500; });
  // So are what they are aligned to, and what overlaps.
  float* const larger = trainer.gpu.Allocate(2000);
  ask(BPS_FLOAT16, BPS_INVALID_ARGUMENT, "input is not aligned to 4 bytes",
      [&](auto* args, auto*) { args->input = args->output = reinterpret_cast<std::byte*>(larger) + 2; });
  ask(BPS_FLOAT16, BPS_INVALID_ARGUMENT, "input and output overlap", [&](auto* args, auto*) {
    args->input = larger;
    args->output = larger + 500;
  });
}

}  // namespace

void RunCasts() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  if (!CastsAreThere(trainer)) return trainer.Leave();
  if (!trainer.on_gpu) {
    bps_request* request = nullptr;
    Ok(SubmitOnCpu(trainer, "probe", BPS_FLOAT16, 0, BPS_SUM, nullptr, &request), "push_pull of nothing");
    Ok(bps_wait(request, 0), "wait for nothing");
    bps_request_free(request);
  }
  struct Tensor {
    std::string name;
    uint32_t dtype;
    size_t count;
    void* memory;
    std::vector<uint16_t> halves;
    Ends ends;
    bps_request* request;
    bps_request* on_host;
    float* copy;
  };
  std::deque<Tensor> tensors;
  uint64_t bytes = 0;  // as they travel
  for (const uint32_t dtype : {BPS_FLOAT16, BPS_BFLOAT16}) {
    for (const size_t count : {size_t{1}, size_t{5'000}, size_t{300'001}}) {
      Tensor& tensor = tensors.emplace_back();
      tensor.name = "t" + std::to_string(tensors.size());
      tensor.dtype = dtype;
      tensor.count = count;
      tensor.memory = trainer.on_gpu ? gpu.Allocate(count) : gpu.Host(count);
      bytes += 2 * count;
    }
  }
  for (uint64_t round = 0; round < 4; ++round) {
    const fake_gpu_counts before = gpu.Counts();
    for (Tensor& tensor : tensors) {
      const auto rank = static_cast<uint64_t>(trainer.info.rank);
      const std::vector<float> numbers = Numbers(100 * tensor.count + 10 * round + rank, tensor.count);
      tensor.halves.resize(tensor.count);
      for (size_t i = 0; i < tensor.count; ++i) tensor.halves[i] = Cast(tensor.dtype, numbers[i]);
      bps_push_pull_args args =
          PushPullArgs(trainer, tensor.name, tensor.dtype, tensor.count, BPS_AVERAGE, tensor.memory);
      if (trainer.on_gpu) {
        gpu.Write(static_cast<float*>(tensor.memory), numbers);
        UseCast(trainer, &tensor.ends, &args);
      } else {
        std::memcpy(tensor.memory, tensor.halves.data(), 2 * tensor.count);
      }
      Ok(bps_push_pull(trainer.session, &args, &tensor.request), "push_pull");
      // A host that casts by itself.
      Ok(SubmitOnCpu(trainer, "host." + tensor.name, tensor.dtype, tensor.count, BPS_AVERAGE, tensor.halves.data(),
                     &tensor.on_host),
         "push_pull on the host");
    }
    for (Tensor& tensor : tensors) {
      Ok(bps_wait_on_stream(tensor.request, trainer.on_gpu ? gpu.stream : nullptr, 0), "wait_on_stream");
      bps_request_free(tensor.request);
      tensor.copy = gpu.Host(tensor.count);
      if (trainer.on_gpu) gpu.Read(tensor.copy, static_cast<float*>(tensor.memory), tensor.count);
      Ok(bps_wait(tensor.on_host, 0), "wait on the host");
      bps_request_free(tensor.on_host);
    }
    const fake_gpu_counts after = gpu.Counts();
    CHECK(after.synchronisations == before.synchronisations);
    if (round != 0) CHECK(after.registrations == before.registrations && after.allocations == before.allocations);
    if (trainer.on_gpu) {
      // (The trainer itself writes and reads float32.)
      CHECK(after.bytes_to_host - before.bytes_to_host == bytes + 2 * bytes);
      CHECK(after.bytes_to_device - before.bytes_to_device == bytes + 2 * bytes);
      CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
    }
    for (const Tensor& tensor : tensors) {
      if (!trainer.on_gpu) {
        CHECK(std::memcmp(tensor.memory, tensor.halves.data(), 2 * tensor.count) == 0);
        continue;
      }
      for (size_t i = 0; i < tensor.count; ++i) CHECK(tensor.copy[i] == Widen(tensor.dtype, tensor.halves[i]));
    }
  }
  if (trainer.on_gpu) CastErrors(trainer);
  gpu.ExpectNoRaces();
  trainer.Leave();
}

void RunFactors() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  constexpr int64_t kCount = 70'001;
  constexpr size_t kBytes = kCount * sizeof(float);
  std::vector<float> host = Numbers(static_cast<uint64_t>(trainer.info.rank), kCount);
  float* const memory = gpu.Allocate(kCount);
  float* const copy = gpu.Host(kCount);
  // The GPU multiplies neither, the input, the result, both.
  for (int round = 0; round < 4; ++round) {
    gpu.Write(memory, host);
    bps_streams streams = BPS_STREAMS_INIT;
    streams.input = streams.output = gpu.stream;
    bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
    args.name = "w";
    args.shape = &kCount;
    args.ndim = 1;
    args.dtype = BPS_FLOAT32;
    args.kind = BPS_ALL_REDUCE;
    args.input = args.output = memory;
    args.output_bytes = kBytes;
    args.input_device = args.output_device = BPS_CUDA;
    args.ext = &streams.ext;
    args.scaled = 1;
    args.prescale = (round & 1) != 0 ? 0.3 : 1;
    args.postscale = (round & 2) != 0 ? 1.7 : 1;
    args.timeout_ms = 60'000;
    const uint64_t before = gpu.Counts().conversions;
    bps_request* requests[2] = {};
    Ok(bps_collective(trainer.session, &args, &requests[0]), "all_reduce");
    args.name = "host.w";
    args.input = args.output = host.data();
    args.input_device = args.output_device = BPS_CPU;
    args.ext = nullptr;
    Ok(bps_collective(trainer.session, &args, &requests[1]), "all_reduce on the host");
    for (bps_request* request : requests) {
      Ok(bps_wait(request, 0), "wait");
      bps_request_free(request);
    }
    const bool kernels = std::getenv("E2E_GPUS") == nullptr;  // of the fake GPU; of a CUDA plugin it may have some
    CHECK(!kernels || (gpu.Counts().conversions - before != 0) == (round != 0));
    gpu.Read(copy, memory, kCount);
    CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
    CHECK(std::memcmp(copy, host.data(), kBytes) == 0);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

}  // namespace byteps
