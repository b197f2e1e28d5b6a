// What callers of bps_collective get wrong on the memory of GPUs, and what runs out.
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/e2e/device_collective_call.h"
#include "tests/e2e/device_collective_scenarios.h"
#include "tests/e2e/device_trainer.h"

namespace byteps {

void RunCollectiveErrors() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const int rank = trainer.info.rank;
  const Side side(trainer);
  float* const memory = gpu.Allocate(1000);
  float* const output = gpu.Allocate(2000);
  float* const pinned = gpu.Host(1000);
  std::vector<float> ordinary(2000);
  const auto ask = [&](int32_t code, const std::string& text, const auto& change) {
    Call call = side.AllGather("c", 1000, memory, output);
    side.Place(&call);
    change(&call);
    Fails(bps_collective(trainer.session, &call.args, &call.request), code, text, text.c_str());
    CHECK(call.request == nullptr);
  };
  ask(BPS_INVALID_ARGUMENT, "input lies on GPU 0, output on GPU 1",
      [](Call* call) { call->args.output_device_id = 1; });
  ask(BPS_INVALID_ARGUMENT, "input is said to be memory of GPU 0, but lies in ordinary host memory",
      [&](Call* call) { call->args.input = ordinary.data(); });
  ask(BPS_INVALID_ARGUMENT, "output is said to be memory of GPU 0, but lies in ordinary host memory",
      [&](Call* call) { call->args.output = ordinary.data(); });
  ask(BPS_INVALID_ARGUMENT, "is said to be pinned host memory, but lies in memory of GPU 0",
      [](Call* call) { call->args.input_device = BPS_CUDA_HOST; });
  ask(BPS_INVALID_ARGUMENT, "but lies in pinned host memory", [&](Call* call) { call->args.input = pinned; });
  ask(BPS_INVALID_ARGUMENT, "80 bytes beyond the end of its allocation",
      [&](Call* call) { call->args.output_bytes = 8080; });
  ask(BPS_INVALID_ARGUMENT, "output is not aligned to 4 bytes", [&](Call* call) {
    call->args.output = reinterpret_cast<std::byte*>(output) + 2;
    call->args.output_bytes = 7992;
  });
  // Beyond its allocation, or over the input: as they lie.
  ask(BPS_INVALID_ARGUMENT, "output", [](Call* call) { call->args.output_bytes = UINT64_MAX; });
  ask(BPS_INVALID_ARGUMENT, "output is NULL", [](Call* call) {
    call->args.output = nullptr;
    call->args.output_bytes = 0;
  });
  ask(BPS_INVALID_ARGUMENT, "_id is -1", [](Call* call) { call->args.input_device_id = -1; });
  ask(BPS_INVALID_ARGUMENT, "more than 2^56 bytes", [](Call* call) {
    static const int64_t shape[] = {int64_t{1} << 40, int64_t{1} << 40};
    call->args.shape = shape;
    call->args.ndim = 2;
  });
  {
    const Gpu other(1);
    ask(BPS_INVALID_ARGUMENT, "the output's stream is of GPU 1, but the output of GPU 0",
        [&](Call* call) { call->streams.output = other.stream; });
  }
  gpu.control->capture(gpu.stream, 1);
  ask(BPS_FAILED_PRECONDITION, "is being captured into a CUDA graph", [](Call*) {});
  gpu.control->capture(gpu.stream, 0);
  const pid_t child = fork();
  if (child == 0) {
    Call call = side.AllGather("c", 1000, memory, output);
    side.Place(&call);
    _exit(bps_status_code(bps_collective(trainer.session, &call.args, nullptr)) == BPS_FAILED_PRECONDITION ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  // Out of pinned memory, for the input and for the result: an error on every rank; then it works.
  constexpr size_t kCount = 50'000;
  float* const large = gpu.Allocate(kCount);
  float* const gathered = gpu.Allocate(kCount * static_cast<size_t>(trainer.info.size));
  gpu.Write(large, Values(rank, 0, 0, kCount));
  for (int round = 0; round < 3; ++round) {
    Call call = side.AllGather("short of memory", kCount, large, gathered);
    if (rank == 0 && round < 2)
      gpu.control->fail("register_host", static_cast<uint64_t>(round), BPS_RESOURCE_EXHAUSTED);
    side.Start(&call);
    bps_status* const outcome = bps_wait(call.request, 0);
    if (round == 2) {
      Ok(outcome, "wait");
    } else {
      Fails(outcome, BPS_RESOURCE_EXHAUSTED, rank == 0 ? "pinning host memory" : "rank 0", "wait");
    }
    bps_request_free(call.request);
  }
  // The host has what the library gives where no output is named.
  gpu.Write(memory, Values(rank, 0, 0, 1000));
  Call call = side.AllGather("on the host", 1000, memory, nullptr);
  side.Start(&call);
  Ok(bps_wait(call.request, 0), "wait");
  bps_result result = BPS_RESULT_INIT;
  Ok(bps_request_result(call.request, 0, &result), "result");
  CHECK(result.bytes == static_cast<uint64_t>(4000 * trainer.info.size));
  const std::vector<float> first = Values(0, 0, 0, 1000);
  CHECK(std::memcmp(result.data, first.data(), 4000) == 0);
  bps_request_free(call.request);
  gpu.ExpectNoRaces();
  trainer.Leave();
}

}  // namespace byteps
