// Operations on the memory of GPUs that end early.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/e2e/device_collective_call.h"
#include "tests/e2e/device_collective_scenarios.h"
#include "tests/e2e/device_trainer.h"

namespace byteps {

void RunCollectiveEnds(const std::string& how) {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const Side side(trainer);
  const bool first = trainer.info.rank == 0;
  constexpr size_t kCount = 300'000;
  bps_buffer_args of_gpu = BPS_BUFFER_ARGS_INIT;
  of_gpu.size = kCount * sizeof(float);
  of_gpu.device = BPS_CUDA;
  bps_buffer* buffer = nullptr;
  Ok(bps_buffer_alloc(trainer.session, &of_gpu, &buffer), "buffer_alloc");
  auto* const memory = static_cast<float*>(bps_buffer_data(buffer));
  float* const output = gpu.Allocate(kCount * static_cast<size_t>(trainer.info.size));
  static int32_t go = 0;
  // What is held has not sent its input to anyone when it ends.
  if (first) {
    CHECK(gpu.control->hold(0, gpu.stream, &go) == BPS_OK);
  }
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, kCount));
  Call call = side.AllGather("w", kCount, memory, output);
  call.args.timeout_ms = how == "deadline" && first ? 1'000 : 30'000;
  side.Start(&call);
  if (how == "deadline") {
    Fails(bps_wait(call.request, 20'000), BPS_DEADLINE_EXCEEDED,
          first ? "what was in the caller's stream of GPU 0" : "rank 0", "wait");
  } else if (how == "cancel") {
    if (first) Fails(bps_buffer_free(buffer), BPS_FAILED_PRECONDITION, "has not ended", "buffer_free");
    if (first) Ok(bps_cancel(call.request), "cancel");
    Fails(bps_wait(call.request, 20'000), first ? BPS_CANCELLED : BPS_ABORTED, "cancelled", "wait");
  } else if (how == "lost") {
    if (first) gpu.control->lose(0);
    Fails(bps_wait(call.request, 20'000), BPS_DATA_LOSS, first ? "illegal memory access" : "rank 0", "wait");
  } else if (how == "close") {
    // Nobody's session fails before all have submitted.
    bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
    Ok(bps_barrier(trainer.session, &barrier), "barrier");
    // Requests and buffers outlive the session; nothing is read or written behind its end.
    bps_request_free(call.request);
    call.request = nullptr;
    if (first) {
      Ok(bps_close(trainer.session), "close");
      __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
      Ok(bps_buffer_free(buffer), "buffer_free");
      CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
      gpu.ExpectNoRaces();
    } else {
      bps_status_free(bps_shutdown(trainer.session, 20'000));
      Ok(bps_close(trainer.session), "close");
      Ok(bps_buffer_free(buffer), "buffer_free");
    }
    return;
  }
  bps_request_free(call.request);
  __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
  Ok(bps_buffer_free(buffer), "buffer_free");
  if (how == "lost") {
    trainer.Leave();
    return;
  }
  // The session goes on.
  float* const fresh = gpu.Allocate(kCount);
  gpu.Write(fresh, Values(trainer.info.rank, 1, 0, kCount));
  Call again = side.AllGather("w", kCount, fresh, output);
  side.Start(&again);
  Ok(bps_wait_on_stream(again.request, gpu.stream, 0), "the next round");
  bps_request_free(again.request);
  const float* const copy = side.Read(output, kCount * static_cast<size_t>(trainer.info.size));
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (int rank = 0; rank < trainer.info.size; ++rank) {
    const std::vector<float> expected = Values(rank, 1, 0, kCount);
    CHECK(std::memcmp(copy + static_cast<size_t>(rank) * kCount, expected.data(), 4 * kCount) == 0);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

void RunCollectivesUntilKilled() {
  constexpr size_t kCount = 100'000;
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const Side side(trainer);
  float* const input = gpu.Allocate(kCount);
  float* const output = gpu.Allocate(kCount * static_cast<size_t>(trainer.info.size));
  gpu.Write(input, Values(trainer.info.rank, 0, 0, kCount));
  for (int round = 0;; ++round) {
    if (round == 3) {
      std::puts("turning");
      std::fflush(stdout);
    }
    Call call = side.AllGather("w", kCount, input, output);
    side.Place(&call);
    bps_status* error = bps_collective(trainer.session, &call.args, &call.request);
    if (error == nullptr) error = bps_wait(call.request, 60'000);
    bps_request_free(call.request);
    if (error == nullptr) continue;
    Fails(error, BPS_UNAVAILABLE, "rank 1", "a round after the death of rank 1");
    break;
  }
  Ok(bps_close(trainer.session), "close");
  gpu.ExpectNoRaces();
}

}  // namespace byteps
