// device_worker.cc - a trainer with a (fake) GPU for the tests of whole jobs: one scenario per run, by name.
//
//     device_worker sums|errors|default_streams|buffers|few_files|refused|second|missing|cancel|lost|death|casts|
//                   factors|group|dtypes|bits|killed|stuck|direct|hang|hanging_close|hanging_caller|
//                   collectives|collective_bits|messages|groups|collective_errors|collective_ends|
//                   collectives_killed [argument]
//
// Exits with 0 when all was as it should be; otherwise says what was not and exits with 1.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/e2e/device_cast_scenarios.h"
#include "tests/e2e/device_collective_scenarios.h"
#include "tests/e2e/device_direct_scenarios.h"
#include "tests/e2e/device_group_scenarios.h"
#include "tests/e2e/device_hang_scenarios.h"
#include "tests/e2e/device_trainer.h"

namespace byteps {
namespace {

// Steps of a training: all gradients are submitted, then the stream waits for each, and the host for none of them.
void Sums() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const size_t counts[] = {1, 300, 5000, 200'000, 700'001};
  constexpr int kRounds = 12, kWarm = 3;
  std::vector<float*> memory, results;
  for (const size_t count : counts) memory.push_back(trainer.on_gpu ? gpu.Allocate(count) : gpu.Host(count));
  fake_gpu_counts warm = {};
  struct Result {
    float* copy;
    std::vector<float> expected;
  };
  std::vector<Result> all;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kWarm) warm = gpu.Counts();
    std::vector<bps_request*> requests;
    for (size_t t = 0; t < std::size(counts); ++t) {
      const std::vector<float> values = Values(trainer.info.rank, round, t, counts[t]);
      if (trainer.on_gpu) {
        gpu.Write(memory[t], values);
      } else {
        std::memcpy(memory[t], values.data(), values.size() * sizeof(float));
      }
      bps_streams streams = BPS_STREAMS_INIT;
      bps_push_pull_args args = trainer.PushPull("t" + std::to_string(t), counts[t], memory[t], &streams);
      args.priority = -static_cast<int64_t>(t);
      bps_request* request = nullptr;
      Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
      requests.push_back(request);
    }
    for (size_t t = 0; t < std::size(counts); ++t) {
      float* copy = gpu.Host(counts[t]);
      if (trainer.on_gpu) {
        Ok(bps_wait_on_stream(requests[t], gpu.stream, 0), "wait_on_stream");
        gpu.Read(copy, memory[t], counts[t]);
      } else {
        Ok(bps_wait_on_stream(requests[t], nullptr, 0), "wait");
        std::memcpy(copy, memory[t], counts[t] * sizeof(float));
      }
      all.push_back({copy, Sum(trainer.info.size, round, t, counts[t])});
      bps_request_free(requests[t]);
    }
  }
  const fake_gpu_counts end = gpu.Counts();
  CHECK(end.synchronisations == 0);
  CHECK(end.registrations == warm.registrations);
  CHECK(end.streams == warm.streams);
  // A round more of them may be under way when the host runs ahead of the GPU.
  CHECK(end.events <= 4 * std::size(counts) + 40);
  if (trainer.on_gpu) {
    uint64_t bytes = 0;
    for (const size_t count : counts) bytes += count * sizeof(float);
    CHECK(end.bytes_to_device - warm.bytes_to_device >= (kRounds - kWarm - 1) * 2 * bytes);
    CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  }
  for (const Result& result : all) {
    CHECK(std::memcmp(result.copy, result.expected.data(), result.expected.size() * sizeof(float)) == 0);
  }
  // A broadcast, out of place on the root, whose output stream waits by itself.
  float* input = trainer.on_gpu ? gpu.Allocate(70'000) : gpu.Host(70'000);
  float* output = trainer.on_gpu ? gpu.Allocate(70'000) : gpu.Host(70'000);
  const std::vector<float> values = Values(trainer.info.rank, 0, 0, 70'000);
  trainer.on_gpu ? gpu.Write(input, values) : void(std::memcpy(input, values.data(), 280'000));
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  bps_streams streams = BPS_STREAMS_INIT;
  streams.input = streams.output = gpu.stream;
  args.tensor = trainer.Declare("b", 70'000);
  args.input = input;
  args.output = output;
  args.input_device = args.output_device = trainer.on_gpu ? BPS_CUDA : BPS_CPU;
  args.ext = trainer.on_gpu ? &streams.ext : nullptr;
  bps_request* request = nullptr;
  Ok(bps_broadcast(trainer.session, &args, &request), "broadcast");
  Ok(bps_wait(request, 0), "wait");
  CHECK(bps_request_state(request) == BPS_REQUEST_DONE);
  bps_request_free(request);
  float* copy = output;
  if (trainer.on_gpu) {
    copy = gpu.Host(70'000);
    gpu.Read(copy, output, 70'000);
    CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  }
  CHECK(std::memcmp(copy, Values(0, 0, 0, 70'000).data(), 280'000) == 0);
  gpu.ExpectNoRaces();
  trainer.Leave();
}

// What callers get wrong: each an error that says what, and the session goes on.
void Errors() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  float* memory = gpu.Allocate(1000);
  float* host = gpu.Host(1000);
  std::vector<float> ordinary(1000);
  const char* device = std::getenv("E2E_GPUS");
  const auto ask = [&](int32_t code, const std::string& text, const auto& change) {
    bps_streams streams = BPS_STREAMS_INIT;
    bps_push_pull_args args = trainer.PushPull("w", 1000, memory, &streams);
    change(&args, &streams);
    bps_request* request = nullptr;
    Fails(bps_push_pull(trainer.session, &args, &request), code, text, text.c_str());
    CHECK(request == nullptr);
  };
  ask(BPS_INVALID_ARGUMENT, device == nullptr ? "there is no fake device 7" : "there is no CUDA device 7",
      [](auto* args, auto*) { args->input_device_id = args->output_device_id = 7; });
  ask(BPS_INVALID_ARGUMENT, "input lies on GPU 0, output on GPU 1",
      [](auto* args, auto*) { args->output_device_id = 1; });
  ask(BPS_INVALID_ARGUMENT, "is said to be memory of GPU 0, but lies in ordinary host memory",
      [&](auto* args, auto*) { args->input = args->output = ordinary.data(); });
  ask(BPS_INVALID_ARGUMENT, "but lies in pinned host memory",
      [&](auto* args, auto*) { args->input = args->output = host; });
  ask(BPS_INVALID_ARGUMENT, "is said to be pinned host memory, but lies in memory of GPU 0",
      [&](auto* args, auto*) { args->input_device = args->output_device = BPS_CUDA_HOST; });
  ask(BPS_INVALID_ARGUMENT, "400 bytes beyond the end of its allocation",
      [&](auto* args, auto*) { args->input = args->output = memory + 100; });
  // A kernel would lose the context over it.
  float* const larger = gpu.Allocate(1001);
  ask(BPS_INVALID_ARGUMENT, "input is not aligned to 4 bytes",
      [&](auto* args, auto*) { args->input = args->output = reinterpret_cast<std::byte*>(larger) + 2; });
  ask(BPS_INVALID_ARGUMENT, "output is not aligned to 4 bytes",
      [&](auto* args, auto*) { args->output = reinterpret_cast<std::byte*>(larger) + 1; });
  {
    const Gpu other(1);
    ask(BPS_INVALID_ARGUMENT, "the input's stream is of GPU 1, but the input of GPU 0",
        [&](auto*, auto* streams) { streams->input = other.stream; });
    ask(BPS_INVALID_ARGUMENT, "the output's stream is of GPU 1, but the output of GPU 0",
        [&](auto*, auto* streams) { streams->output = other.stream; });
  }
  if (trainer.info.rank == 0) {
    bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
    args.tensor = trainer.Declare("b", 1000);
    args.input = memory;
    args.output = ordinary.data();
    args.input_device = BPS_CUDA;
    bps_request* request = nullptr;
    Fails(bps_broadcast(trainer.session, &args, &request), BPS_INVALID_ARGUMENT,
          "at the root of a broadcast input and output are of the same device", "broadcast");
  }
  gpu.control->capture(gpu.stream, 1);
  ask(BPS_FAILED_PRECONDITION, "is being captured into a CUDA graph", [](auto*, auto*) {});
  gpu.control->capture(gpu.stream, 0);
  void* const of_this_thread = reinterpret_cast<void*>(2);  // cudaStreamPerThread
  ask(BPS_INVALID_ARGUMENT, "set bps_streams.output_later, and name the stream in bps_wait_on_stream",
      [&](auto*, auto* streams) {
        streams->output = of_this_thread;
        streams->output_later = 0;
      });
  ask(BPS_INVALID_ARGUMENT, "reserved", [](auto*, auto* streams) { streams->reserved = 1; });
  ask(BPS_INVALID_ARGUMENT, "two extensions", [&](auto*, auto* streams) {
    static bps_streams second = BPS_STREAMS_INIT;
    streams->ext.next = &second.ext;
  });
  ask(BPS_UNIMPLEMENTED, "device type 4", [](auto* args, auto*) { args->input_device = 4; });
  bps_buffer_args buffer_args = BPS_BUFFER_ARGS_INIT;
  buffer_args.size = 64;
  bps_buffer* buffer = nullptr;
  for (const int32_t type : {BPS_CUDA, BPS_CUDA_HOST}) {
    buffer_args.device = type;
    buffer_args.device_id = 7;
    Fails(bps_buffer_alloc(trainer.session, &buffer_args, &buffer), BPS_INVALID_ARGUMENT, "device 7", "buffer");
    buffer_args.device_id = -1;
    Fails(bps_buffer_alloc(trainer.session, &buffer_args, &buffer), BPS_INVALID_ARGUMENT, "negative", "buffer");
    buffer_args.device_id = 0;
    gpu.control->fail(type == BPS_CUDA ? "allocate" : "register_host", 0, BPS_RESOURCE_EXHAUSTED);
    Fails(bps_buffer_alloc(trainer.session, &buffer_args, &buffer), BPS_RESOURCE_EXHAUSTED, "GPU 0", "buffer");
    CHECK(buffer == nullptr);
  }
  // After fork() neither the library nor the GPU can be used.
  const pid_t child = fork();
  if (child == 0) {
    bps_streams streams = BPS_STREAMS_INIT;
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.input = args.output = memory;
    args.input_device = args.output_device = BPS_CUDA;
    args.ext = &streams.ext;
    buffer_args.device = BPS_CUDA;
    const bool refused =
        bps_status_code(bps_push_pull(trainer.session, &args, nullptr)) == BPS_FAILED_PRECONDITION &&
        bps_status_code(bps_buffer_alloc(trainer.session, &buffer_args, &buffer)) == BPS_FAILED_PRECONDITION;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  // Out of pinned memory in the operation itself: an error on every rank; then it works.
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, 1000));
  if (trainer.info.rank == 0) gpu.control->fail("register_host", 0, BPS_RESOURCE_EXHAUSTED);
  for (int round = 0; round < 2; ++round) {
    bps_streams streams = BPS_STREAMS_INIT;
    bps_push_pull_args args = trainer.PushPull("w", 1000, memory, &streams);
    bps_request* request = nullptr;
    Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
    if (round == 1) {
      gpu.control->capture(gpu.stream, 1);
      Fails(bps_wait_on_stream(request, gpu.stream, 0), BPS_FAILED_PRECONDITION, "cannot wait for a result", "wait");
      gpu.control->capture(gpu.stream, 0);
    }
    bps_status* outcome = bps_wait_on_stream(request, gpu.stream, 0);
    if (round == 1) Ok(outcome, "wait_on_stream");
    if (round == 0 && trainer.info.rank == 0) Fails(outcome, BPS_RESOURCE_EXHAUSTED, "pinning host memory", "wait");
    if (round == 0 && trainer.info.rank != 0) Fails(outcome, BPS_RESOURCE_EXHAUSTED, "rank 0", "wait");
    bps_request_free(request);
  }
  trainer.Leave();
}

// The default streams of CUDA: that of all threads (NULL and 1) waits for a result by itself; that of the calling
// thread (2) does what this thread asks for.
void DefaultStreams() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  constexpr size_t kCount = 20'000;
  float* const memory = gpu.Allocate(kCount);
  for (int round = 0; round < 6; ++round) {
    const auto stream = reinterpret_cast<bps_device_stream>(static_cast<uintptr_t>(round % 3));
    const bool later = round % 3 == 2;
    const std::vector<float> values = Values(trainer.info.rank, round, 0, kCount);
    float* const fresh = gpu.Host(kCount);
    std::memcpy(fresh, values.data(), kCount * sizeof(float));
    CHECK(gpu.table->copy_to_device(gpu.device, memory, fresh, kCount * sizeof(float), stream, nullptr) == BPS_OK);
    bps_streams streams = BPS_STREAMS_INIT;
    bps_push_pull_args args = trainer.PushPull("w", kCount, memory, &streams);
    streams.input = streams.output = stream;
    streams.output_later = later ? 1 : 0;
    bps_request* request = nullptr;
    Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
    // Behind this the result is in a stream: in the one of the output, if it waits by itself.
    Ok(bps_wait_on_stream(request, later ? stream : gpu.stream, 0), "wait_on_stream");
    bps_request_free(request);
    float* const copy = gpu.Host(kCount);
    CHECK(gpu.table->copy_to_host(gpu.device, copy, memory, kCount * sizeof(float), stream, nullptr) == BPS_OK);
    CHECK(gpu.table->synchronize(gpu.device, stream, nullptr) == BPS_OK);
    CHECK(std::memcmp(copy, Sum(trainer.info.size, round, 0, kCount).data(), kCount * sizeof(float)) == 0);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

// Memory that the library gives out, pinned and of the GPU: zeros, operations on it, and who may free it when.
void Buffers() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  constexpr size_t kCount = 50'000;
  for (const int32_t type : {BPS_CUDA_HOST, BPS_CUDA}) {
    bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
    args.size = kCount * sizeof(float);
    args.device = type;
    bps_buffer* buffer = nullptr;
    Ok(bps_buffer_alloc(trainer.session, &args, &buffer), "buffer_alloc");
    auto* memory = static_cast<float*>(bps_buffer_data(buffer));
    bps_device_pointer pointer = {};
    pointer.struct_size = sizeof pointer;
    CHECK(gpu.table->pointer(gpu.device, memory, &pointer, nullptr) == BPS_OK);
    CHECK(pointer.type == type && pointer.id == 0);
    float* const copy = gpu.Host(kCount);
    const auto read = [&] {
      if (type == BPS_CUDA_HOST) return void(std::memcpy(copy, memory, args.size));
      gpu.Read(copy, memory, kCount);
      CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
    };
    read();
    for (size_t i = 0; i < kCount; ++i) CHECK(copy[i] == 0);
    const std::vector<float> values = Values(trainer.info.rank, 0, 0, kCount);
    type == BPS_CUDA ? gpu.Write(memory, values) : void(std::memcpy(memory, values.data(), args.size));
    bps_streams streams = BPS_STREAMS_INIT;
    bps_push_pull_args ask = trainer.PushPull("b" + std::to_string(type), kCount, memory, &streams);
    ask.input_device = ask.output_device = type;
    // The others come when this rank has tried to free it.
    bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
    if (trainer.info.rank != 0) Ok(bps_barrier(trainer.session, &barrier), "barrier");
    bps_request* request = nullptr;
    Ok(bps_push_pull(trainer.session, &ask, &request), "push_pull");
    if (trainer.info.rank == 0) {
      Fails(bps_buffer_free(buffer), BPS_FAILED_PRECONDITION, "has not ended", "buffer_free");
      Ok(bps_barrier(trainer.session, &barrier), "barrier");
    }
    Ok(bps_wait(request, 0), "wait");
    bps_request_free(request);
    read();
    CHECK(std::memcmp(copy, Sum(trainer.info.size, 0, 0, kCount).data(), args.size) == 0);
    Ok(bps_buffer_free(buffer), "buffer_free");
    CHECK(gpu.table->pointer(gpu.device, memory, &pointer, nullptr) == BPS_OK && pointer.type == BPS_CPU);
    args.size = 0;
    Ok(bps_buffer_alloc(trainer.session, &args, &buffer), "buffer_alloc of nothing");
    Ok(bps_buffer_free(buffer), "buffer_free of nothing");
    // One that outlives the session.
    args.size = 4096;
    Ok(bps_buffer_alloc(trainer.session, &args, &trainer.kept[type == BPS_CUDA ? 0 : 1]), "buffer_alloc");
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
  for (bps_buffer* each : trainer.kept) Ok(bps_buffer_free(each), "buffer_free behind close");
}

// Without a driver, or without a plugin. `argument`: what the error says.
void Missing(const std::string& argument) {
  bps_session* session = nullptr;
  bps_open_args open = BPS_OPEN_ARGS_INIT;
  Ok(bps_open(&open, &session), "open");
  const int64_t shape[] = {4};
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  declare.name = "w";
  declare.dtype = BPS_FLOAT32;
  declare.shape = shape;
  declare.ndim = 1;
  bps_tensor* tensor = nullptr;
  Ok(bps_declare(session, &declare, &tensor), "declare");
  float memory[4] = {};
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = args.output = memory;
  args.input_device = args.output_device = BPS_CUDA;
  bps_status* refused = bps_push_pull(session, &args, nullptr);
  CHECK(bps_status_code(refused) == BPS_NOT_FOUND || bps_status_code(refused) == BPS_UNAVAILABLE);
  if (std::string(bps_status_message(refused)).find(argument) == std::string::npos) Die(bps_status_message(refused));
  bps_status_free(refused);
  // CPU memory is taken as ever.
  args.input_device = args.output_device = 0;
  bps_request* request = nullptr;
  Ok(bps_push_pull(session, &args, &request), "push_pull");
  Ok(bps_wait(request, 0), "wait");
  bps_request_free(request);
  Ok(bps_shutdown(session, 10'000), "shutdown");
  Ok(bps_close(session), "close");
}

// Variables that cannot be honoured: the first call on device memory says why. `argument`: what the error says.
void Refused(const std::string& argument) {
  Trainer trainer;
  float* const memory = trainer.gpu.Allocate(1000);
  bps_streams streams = BPS_STREAMS_INIT;
  bps_push_pull_args args = trainer.PushPull("w", 1000, memory, &streams);
  bps_request* request = nullptr;
  bps_status* const refused = bps_push_pull(trainer.session, &args, &request);
  const int32_t code = bps_status_code(refused);
  CHECK(code == BPS_INVALID_ARGUMENT || code == BPS_UNIMPLEMENTED);
  if (std::string(bps_status_message(refused)).find(argument) == std::string::npos) Die(bps_status_message(refused));
  bps_status_free(refused);
  trainer.Leave();
}

// Two GPUs in one process: each tensor is on one of them.
void SecondGpu() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  const Gpu other(1);
  constexpr size_t kCount = 20'000;
  for (int round = 0; round < 4; ++round) {
    const bool second = round % 2 == 1;
    bps_device* const device = second ? other.device : gpu.device;
    const bps_device_stream used = second ? other.stream : gpu.stream;
    void* memory = nullptr;
    CHECK(gpu.table->allocate(device, kCount * sizeof(float), &memory, nullptr) == BPS_OK);
    const std::vector<float> values = Values(trainer.info.rank, round, 0, kCount);
    float* const host = gpu.Host(kCount);
    std::memcpy(host, values.data(), kCount * sizeof(float));
    CHECK(gpu.table->copy_to_device(device, memory, host, kCount * sizeof(float), used, nullptr) == BPS_OK);
    bps_streams streams = BPS_STREAMS_INIT;
    bps_push_pull_args args =
        trainer.PushPull(second ? "second" : "first", kCount, static_cast<float*>(memory), &streams);
    streams.input = streams.output = used;
    args.input_device_id = args.output_device_id = second ? 1 : 0;
    bps_request* request = nullptr;
    Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
    Ok(bps_wait_on_stream(request, used, 0), "wait_on_stream");
    bps_request_free(request);
    float* const copy = gpu.Host(kCount);
    CHECK(gpu.table->copy_to_host(device, copy, memory, kCount * sizeof(float), used, nullptr) == BPS_OK);
    CHECK(gpu.table->synchronize(device, used, nullptr) == BPS_OK);
    CHECK(std::memcmp(copy, Sum(trainer.info.size, round, 0, kCount).data(), kCount * sizeof(float)) == 0);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

// Rank 0 gives a round up: by a cancel, or because its GPU is lost in the middle. The others hear why.
void Abort(bool lose) {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  float* memory = gpu.Allocate(300'000);
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, 300'000));
  bps_streams streams = BPS_STREAMS_INIT;
  bps_push_pull_args args = trainer.PushPull("w", 300'000, memory, &streams);
  bps_request* request = nullptr;
  if (trainer.info.rank == 0) {
    Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
    if (lose) gpu.control->lose(0);
    if (!lose) Ok(bps_cancel(request), "cancel");
    Fails(bps_wait(request, 20'000), lose ? BPS_DATA_LOSS : BPS_CANCELLED, lose ? "illegal memory access" : "", "wait");
  } else {
    Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
    Fails(bps_wait(request, 20'000), lose ? BPS_DATA_LOSS : BPS_ABORTED, lose ? "rank 0" : "cancelled", "wait");
  }
  bps_request_free(request);
  trainer.Leave();
}

// Rank 1 is killed while the others wait for it on their streams.
void Death() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  float* memory = gpu.Allocate(300'000);
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, 300'000));
  if (trainer.info.rank == 1) {
    for (;;) pause();  // until it is killed
  }
  bps_streams streams = BPS_STREAMS_INIT;
  bps_push_pull_args args = trainer.PushPull("w", 300'000, memory, &streams);
  bps_request* request = nullptr;
  Ok(bps_push_pull(trainer.session, &args, &request), "push_pull");
  std::puts("waiting");
  std::fflush(stdout);
  Fails(bps_wait_on_stream(request, gpu.stream, 60'000), BPS_UNAVAILABLE, "rank 1", "wait_on_stream");
  bps_request_free(request);
  Ok(bps_close(trainer.session), "close");
  gpu.ExpectNoRaces();
}

// Half of the open files that it may have are in use: what the library makes for tensors, or the caller by
// bps_buffer_alloc, is memory of this process alone.
void FewFiles(const std::string& what) {
  constexpr size_t kElements = 200'000;
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  int highest = 0, last = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    highest = std::max(highest, std::stoi(file.path().filename().string()));
  }
  while (last <= highest) CHECK((last = dup(STDERR_FILENO)) > 0);  // no number below is free
  const rlimit limit = {static_cast<rlim_t>(2 * last), static_cast<rlim_t>(2 * last)};
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (what == "buffers") {
    bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
    args.size = 4 * kElements;
    bps_buffer* buffers[2] = {};
    for (bps_buffer*& each : buffers) Ok(bps_buffer_alloc(trainer.session, &args, &each), "buffer_alloc");
    for (bps_buffer* each : buffers) Ok(bps_buffer_free(each), "buffer_free");
    trainer.Leave();
    return;
  }
  for (size_t t = 0; t < 3; ++t) {
    float* const memory = gpu.Allocate(kElements);
    gpu.Write(memory, Values(trainer.info.rank, 0, t, kElements));
    bps_streams streams = BPS_STREAMS_INIT;
    bps_request* request = nullptr;
    Ok(Submit(trainer, "t" + std::to_string(t), BPS_FLOAT32, kElements, BPS_SUM, memory, &streams, &request),
       "push_pull");
    Ok(bps_wait(request, 0), "wait");
    bps_request_free(request);
    float* const copy = gpu.Host(kElements);
    gpu.Read(copy, memory, kElements);
    CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
    CHECK(std::memcmp(copy, Sum(trainer.info.size, 0, t, kElements).data(), 4 * kElements) == 0);
  }
  gpu.ExpectNoRaces();
  trainer.Leave();
}

}  // namespace
}  // namespace byteps

int main(int count, char** arguments) {
  using namespace byteps;  // NOLINT(google-build-using-namespace): main is the only thing outside
  const std::string scenario = count > 1 ? arguments[1] : "";
  const std::string argument = count > 2 ? arguments[2] : "";
  if (scenario == "sums")
    Sums();
  else if (scenario == "group")
    RunGroup();
  else if (scenario == "dtypes")
    RunGroupDtypes();
  else if (scenario == "bits")
    RunGroupBits();
  else if (scenario == "killed")
    RunGroupUntilKilled();
  else if (scenario == "stuck")
    RunGroupStuck(argument);
  else if (scenario == "hang")
    RunHang(argument);
  else if (scenario == "hanging_close")
    RunHangOfClose(argument);
  else if (scenario == "hanging_caller")
    RunHangOfACaller();
  else if (scenario == "direct")
    RunDirect();
  else if (scenario == "collectives")
    RunCollectives();
  else if (scenario == "collective_bits")
    RunCollectiveBits();
  else if (scenario == "messages")
    RunCollectiveMessages();
  else if (scenario == "groups")
    RunCollectiveGroups();
  else if (scenario == "collective_errors")
    RunCollectiveErrors();
  else if (scenario == "collective_ends")
    RunCollectiveEnds(argument);
  else if (scenario == "collectives_killed")
    RunCollectivesUntilKilled();
  else if (scenario == "casts")
    RunCasts();
  else if (scenario == "factors")
    RunFactors();
  else if (scenario == "errors")
    Errors();
  else if (scenario == "default_streams")
    DefaultStreams();
  else if (scenario == "buffers")
    Buffers();
  else if (scenario == "few_files")
    FewFiles(argument);
  else if (scenario == "refused")
    Refused(argument);
  else if (scenario == "second")
    SecondGpu();
  else if (scenario == "missing")
    Missing(argument);
  else if (scenario == "cancel")
    Abort(false);
  else if (scenario == "lost")
    Abort(true);
  else if (scenario == "death")
    Death();
  else
    Die("no scenario \"" + scenario + "\"");
  return 0;
}
