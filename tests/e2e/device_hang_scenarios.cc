#include "tests/e2e/device_hang_scenarios.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/device_trainer.h"

namespace byteps {
namespace {

constexpr size_t kCount = 3000;

// What an operation calls once, before its first step.
bool IsOfTheFirst(const std::string& verb) {
  return verb == "register_host" || verb == "stream_create" || verb == "join";
}

bps_request* Begin(const Trainer& trainer, bool collective, float* memory, float* all, bps_streams* streams) {
  streams->input = streams->output = trainer.gpu.stream;
  bps_request* request = nullptr;
  if (!collective) {
    bps_push_pull_args args = trainer.PushPull("w", kCount, memory, streams);
    streams->output_later = 0;
    args.timeout_ms = 0;
    Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
    return request;
  }
  const int64_t shape[] = {static_cast<int64_t>(kCount)};
  bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
  args.kind = BPS_ALL_GATHER;
  args.name = "g";
  args.dtype = BPS_FLOAT32;
  args.shape = shape;
  args.ndim = 1;
  args.input = memory;
  args.output = all;
  args.output_bytes = kCount * sizeof(float) * static_cast<size_t>(trainer.info.size);
  args.input_device = args.output_device = BPS_CUDA;
  args.ext = &streams->ext;
  Ok(bps_collective(trainer.session, &args, &request), "all_gather");
  return request;
}

}  // namespace

void RunHang(const std::string& what) {
  const size_t space = what.find(' ');
  const bool collective = space != std::string::npos;
  const std::string verb = collective ? what.substr(space + 1) : what;
  const std::string told = "has not returned from " + verb + " for ";
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const bool hangs = trainer.info.rank == trainer.info.size - 1;
  float* const memory = gpu.Allocate(kCount);
  float* const all = gpu.Allocate(kCount * static_cast<size_t>(trainer.info.size));
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, kCount));
  bps_streams streams = BPS_STREAMS_INIT;
  if (!IsOfTheFirst(verb)) {
    bps_request* const first = Begin(trainer, collective, memory, all, &streams);
    Ok(bps_wait(first, 0), "the first step");
    bps_request_free(first);
  }
  // What the library's thread does comes behind this stream, what this thread does comes now.
  static int32_t go;
  CHECK(gpu.control->hold(0, gpu.stream, &go) == BPS_OK);
  if (hangs && IsOfTheFirst(verb)) gpu.control->hang(verb.c_str(), 0);
  bps_request* const request = Begin(trainer, collective, memory, all, &streams);
  if (hangs && !IsOfTheFirst(verb)) gpu.control->hang(verb.c_str(), 0);
  __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
  bps_status* const outcome = bps_wait(request, 0);
  const std::string message = bps_status_message(outcome);
  std::printf("rank %d: code %d: %s\n", trainer.info.rank, bps_status_code(outcome), message.c_str());
  // Where it hangs behind the result, that of the other rank may have come: then the next call tells of it.
  if (hangs || bps_status_code(outcome) != BPS_OK) {
    CHECK(message.find("device plugin \"") != std::string::npos && message.find(told) != std::string::npos);
  }
  if (hangs) CHECK(bps_status_code(outcome) == BPS_INTERNAL && gpu.control->hang(nullptr, 0) == 1);
  bps_status_free(outcome);
  bps_request_free(request);
  // It is the answer to all that comes, and nothing waits for that thread.
  const bps_barrier_args later = BPS_BARRIER_ARGS_INIT;
  bps_status* const refused = bps_barrier(trainer.session, &later);
  CHECK(std::string(bps_status_message(refused)).find(told) != std::string::npos);
  bps_status_free(refused);
  Ok(bps_close(trainer.session), "close");
  std::fflush(stdout);
  std::_Exit(0);  // that thread is in the middle of something
}

void RunHangOfClose(const std::string& verb) {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  float* const memory = gpu.Allocate(kCount);
  float* const all = gpu.Allocate(kCount * static_cast<size_t>(trainer.info.size));
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, kCount));
  for (const bool collective : {false, true}) {
    bps_streams streams = BPS_STREAMS_INIT;
    bps_request* const request = Begin(trainer, collective, memory, all, &streams);
    Ok(bps_wait(request, 0), "wait");
    bps_request_free(request);
  }
  Ok(bps_shutdown(trainer.session, 30'000), "shutdown");
  const bool hangs = trainer.info.rank == trainer.info.size - 1;
  if (hangs) gpu.control->hang(verb.c_str(), 0);
  Ok(bps_close(trainer.session), "close");
  CHECK(gpu.control->hang(nullptr, 0) == (hangs ? 1 : 0));
  std::fflush(stdout);
  std::_Exit(0);  // that thread is in the middle of something
}

void RunHangOfACaller() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  // Opened, but of no operation yet.
  bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
  args.size = kCount * sizeof(float);
  args.device = BPS_CUDA;
  bps_buffer* buffer = nullptr;
  Ok(bps_buffer_alloc(trainer.session, &args, &buffer), "buffer_alloc");
  const Gpu other(1);
  float* const elsewhere = other.Allocate(kCount);
  gpu.control->hang("open", 0);
  std::thread caller([&] {
    bps_streams streams = BPS_STREAMS_INIT;
    bps_push_pull_args asked = trainer.PushPull("other", kCount, elsewhere, &streams);
    streams.input = streams.output = other.stream;
    asked.input_device_id = asked.output_device_id = 1;
    bps_request* request = nullptr;
    bps_push_pull(trainer.session, &asked, &request);
    Die("the call has returned");
  });
  caller.detach();
  while (gpu.control->hang(nullptr, 0) == 0) std::this_thread::yield();
  float* const memory = gpu.Allocate(kCount);
  for (int round = 0; round < 3; ++round) {
    gpu.Write(memory, Values(trainer.info.rank, round, 0, kCount));
    bps_streams streams = BPS_STREAMS_INIT;
    bps_push_pull_args asked = trainer.PushPull("w", kCount, memory, &streams);
    bps_request* request = nullptr;
    Ok(bps_push_pull(trainer.session, &asked, &request), "push_pull");
    Ok(bps_wait(request, 0), "wait");
    bps_request_free(request);
    float* const copy = gpu.Host(kCount);
    gpu.Read(copy, memory, kCount);
    CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
    CHECK(std::memcmp(copy, Sum(trainer.info.size, round, 0, kCount).data(), kCount * sizeof(float)) == 0);
  }
  Ok(bps_shutdown(trainer.session, 30'000), "shutdown");
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace byteps
