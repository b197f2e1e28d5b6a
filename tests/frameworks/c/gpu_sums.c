/* gpu_sums.c - a trainer in C whose tensors are in the memory of a GPU: the simulated one that BYTEPS_DEVICE names.
 *
 *     bpslaunch --workers 2 -- gpu_sums gpus       "gpus": the GPUs of the host reduce among themselves
 *     bpslaunch --workers 2 -- gpu_sums host       "host": through pinned memory
 *
 * In each round a stream of the trainer's writes the tensors, BytePS sums them over all ranks behind that, and the
 * stream reads the results: the host waits for the GPU once, at the end. The exit status is 0 if all sums are right,
 * the tensors went the way that was named, and every access was ordered.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/byteps.h"
#include "device_plugins/fake/control.h"

enum { kTensors = 3, kRounds = 4, kMost = 300001 };

static const int64_t kElements[kTensors] = {1, 5000, kMost};

static void Fail(const char* what, const char* why) {
  fprintf(stderr, "gpu_sums: %s: %s\n", what, why);
  exit(1);
}

static void Check(bps_status* status, const char* what) {
  if (status != NULL) Fail(what, bps_status_message(status));
}

static void Expect(int condition, const char* what) {
  if (!condition) Fail(what, "it is not so");
}

/* The trainer's own view of the GPU, as a program has CUDA's. */
struct gpu {
  const fake_gpu_control* control;
  const bps_device_table* table;
  bps_device* device;
  bps_device_stream stream;
};

static struct gpu OpenGpu(void) {
  struct gpu gpu = {NULL, NULL, NULL, NULL};
  const char* path = getenv("BYTEPS_DEVICE");
  Expect(path != NULL, "BYTEPS_DEVICE is set");
  void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (plugin == NULL) Fail(path, dlerror());
  void* found = dlsym(plugin, "bps_fake_gpu");
  Expect(found != NULL, "the plugin is the simulated GPU");
  const fake_gpu_control* (*control)(void);
  memcpy(&control, &found, sizeof control);
  gpu.control = control();
  gpu.table = gpu.control->table;
  const bps_device_open_args args = {.struct_size = sizeof args, .index = 0};
  Expect(gpu.table->open(&args, &gpu.device, NULL) == BPS_OK, "the GPU can be opened");
  Expect(gpu.table->stream_create(gpu.device, 0, &gpu.stream, NULL) == BPS_OK, "a stream can be made");
  return gpu;
}

/* Pinned memory for a tensor. */
static float* Pinned(const struct gpu* gpu, int64_t elements) {
  void* made = NULL;
  Expect(gpu->table->allocate_host(gpu->device, 4 * (uint64_t)elements, &made, NULL) == BPS_OK, "pinned memory");
  return made;
}

/* Small whole numbers: every order of additions has their bits. */
static float Value(int rank, int round, int64_t at) { return (float)((rank + 1) * (round + 3) + at * 7 % 1000); }

static bps_tensor* Declare(bps_session* session, const char* name, int64_t elements) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  args.name = name;
  args.dtype = BPS_FLOAT32;
  args.shape = &elements;
  args.ndim = 1;
  bps_tensor* tensor = NULL;
  Check(bps_declare(session, &args, &tensor), name);
  return tensor;
}

int main(int argc, char** argv) {
  Expect(argc == 2, "there is one argument, gpus or host");
  const int by_gpus = strcmp(argv[1], "gpus") == 0;
  const struct gpu gpu = OpenGpu();
  bps_open_args open = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  Check(bps_open(&open, &session), "bps_open");
  bps_info info = BPS_INFO_INIT;
  Check(bps_session_info(session, &info), "bps_session_info");

  const char* const names[kTensors] = {"one", "small", "large"};
  bps_tensor* tensors[kTensors];
  bps_buffer* memory[kTensors];
  float* results[kRounds][kTensors];
  uint64_t written = 0;
  for (int i = 0; i < kTensors; ++i) {
    tensors[i] = Declare(session, names[i], kElements[i]);
    bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
    args.size = 4 * (uint64_t)kElements[i];
    args.device = BPS_CUDA;
    Check(bps_buffer_alloc(session, &args, &memory[i]), "bps_buffer_alloc");
  }
  /* (Memory of a GPU is waited for when it is made: it is zeros.) */
  fake_gpu_counts before, counts;
  gpu.control->counts(&before);
  bps_request* requests[kRounds][kTensors];
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kTensors; ++i) {
      const uint64_t bytes = 4 * (uint64_t)kElements[i];
      float* values = Pinned(&gpu, kElements[i]);
      for (int64_t at = 0; at < kElements[i]; ++at) values[at] = Value(info.rank, round, at);
      void* gradient = bps_buffer_data(memory[i]);
      Expect(gpu.table->copy_to_device(gpu.device, gradient, values, bytes, gpu.stream, NULL) == BPS_OK, "a write");
      written += bytes;
      bps_streams streams = BPS_STREAMS_INIT;
      streams.input = streams.output = gpu.stream;
      streams.output_later = 1;
      bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
      args.tensor = tensors[i];
      args.input = args.output = gradient;
      args.input_device = args.output_device = BPS_CUDA;
      args.op = BPS_SUM;
      args.ext = &streams.ext;
      Check(bps_push_pull(session, &args, &requests[round][i]), "bps_push_pull");
    }
    for (int i = 0; i < kTensors; ++i) {
      Check(bps_wait_on_stream(requests[round][i], gpu.stream, 0), "bps_wait_on_stream");
      results[round][i] = Pinned(&gpu, kElements[i]);
      Expect(gpu.table->copy_to_host(gpu.device, results[round][i], bps_buffer_data(memory[i]),
                                     4 * (uint64_t)kElements[i], gpu.stream, NULL) == BPS_OK,
             "a read");
    }
  }
  gpu.control->counts(&counts);
  Expect(counts.synchronisations == before.synchronisations, "no call has waited for the GPU");
  const uint64_t copied = counts.bytes_to_device - before.bytes_to_device - written;
  Expect(by_gpus ? copied == 0 : copied == written, "the results came by the way that was named");

  Expect(gpu.table->synchronize(gpu.device, gpu.stream, NULL) == BPS_OK, "the GPU can be waited for");
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kTensors; ++i) {
      for (int64_t at = 0; at < kElements[i]; ++at) {
        float sum = 0;
        for (int rank = 0; rank < info.size; ++rank) sum += Value(rank, round, at);
        Expect(results[round][i][at] == sum, names[i]);
      }
    }
  }
  /* The library may see a little later than the stream that an operation has ended. */
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kTensors; ++i) {
      Check(bps_wait(requests[round][i], 10000), "bps_wait");
      bps_request_free(requests[round][i]);
    }
  }
  char race[400] = "";
  if (gpu.control->race(0, race, sizeof race) != 0) Fail("an access that nothing orders", race);
  for (int i = 0; i < kTensors; ++i) Check(bps_buffer_free(memory[i]), "bps_buffer_free");
  Check(bps_shutdown(session, 10000), "bps_shutdown");
  Check(bps_close(session), "bps_close");
  printf("gpu_sums: rank %d of %d: all sums are right\n", (int)info.rank, (int)info.size);
  return 0;
}
