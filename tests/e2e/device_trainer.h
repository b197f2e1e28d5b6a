// device_trainer.h - what the scenarios of device_worker.cc share: the trainer's GPU, its session, and checks.
//
//     Trainer trainer;                                          // joins the job; a GPU of its own
//     trainer.gpu.Write(memory, Values(rank, round, 0, count)); // in the trainer's stream
//     Ok(Submit(trainer, "w", BPS_FLOAT32, count, BPS_SUM, memory, &streams, &request), "push_pull");
//     trainer.Leave();
//
// The trainer uses the same simulated GPUs as the library: those of the plugin that BYTEPS_DEVICE names, or of the
// driver that E2E_GPUS names, on which the CUDA plugin runs.
//
// Threads: one. Errors: a check that fails prints why and ends the process with 1.
#ifndef BYTEPS_TESTS_E2E_DEVICE_TRAINER_H_
#define BYTEPS_TESTS_E2E_DEVICE_TRAINER_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "device_plugins/fake/control.h"

namespace byteps {

[[noreturn]] inline void Die(const std::string& what) {
  std::printf("FAILED: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

#define CHECK(condition) \
  if (!(condition)) Die(std::string(__FILE__ ":") + std::to_string(__LINE__) + ": " #condition)

inline void Ok(bps_status* status, const char* what) {
  if (status == nullptr) return;
  Die(std::string(what) + ": code " + std::to_string(bps_status_code(status)) + ": " + bps_status_message(status));
}

// The call must fail with this code, and say this.
inline void Fails(bps_status* status, int32_t code, const std::string& text, const char* what) {
  const std::string message = bps_status_message(status);
  if (bps_status_code(status) != code || message.find(text) == std::string::npos) {
    Die(std::string(what) + ": code " + std::to_string(bps_status_code(status)) + ", not " + std::to_string(code) +
        ": " + message + "; expected in it: " + text);
  }
  bps_status_free(status);
}

// The trainer's own view of a GPU.
class Gpu {
 public:
  explicit Gpu(int32_t index = 0) {
    const char* driver = std::getenv("E2E_GPUS");
    void* plugin = dlopen(driver != nullptr ? driver : std::getenv("BYTEPS_DEVICE"), RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) Die(dlerror());
    auto* find = reinterpret_cast<const fake_gpu_control* (*)()>(dlsym(plugin, "bps_fake_gpu"));
    CHECK(find != nullptr);
    control = find();
    table = control->table;
    bps_device_open_args args = {};
    args.struct_size = sizeof args;
    args.index = index;
    CHECK(table->open(&args, &device, nullptr) == BPS_OK);
    CHECK(table->stream_create(device, 0, &stream, nullptr) == BPS_OK);
  }
  ~Gpu() {
    table->stream_destroy(device, stream, nullptr);
    table->close(device);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void* AllocateBytes(size_t bytes) const {
    void* base = nullptr;
    CHECK(table->allocate(device, bytes, &base, nullptr) == BPS_OK);
    return base;
  }
  std::byte* HostBytes(size_t bytes) const {
    void* base = nullptr;
    CHECK(table->allocate_host(device, bytes, &base, nullptr) == BPS_OK);
    return static_cast<std::byte*>(base);
  }
  float* Allocate(size_t count) const { return static_cast<float*>(AllocateBytes(count * sizeof(float))); }
  float* Host(size_t count) const { return reinterpret_cast<float*>(HostBytes(count * sizeof(float))); }
  // In the trainer's stream, as a kernel would.
  void WriteBytes(void* to, const std::vector<std::byte>& bytes) const {
    std::byte* fresh = HostBytes(bytes.size());
    std::memcpy(fresh, bytes.data(), bytes.size());
    CHECK(table->copy_to_device(device, to, fresh, bytes.size(), stream, nullptr) == BPS_OK);
  }
  void ReadBytes(void* to, const void* from, size_t bytes) const {
    CHECK(table->copy_to_host(device, to, from, bytes, stream, nullptr) == BPS_OK);
  }
  void Write(float* to, const std::vector<float>& values) const {
    float* fresh = Host(values.size());
    std::memcpy(fresh, values.data(), values.size() * sizeof(float));
    CHECK(table->copy_to_device(device, to, fresh, values.size() * sizeof(float), stream, nullptr) == BPS_OK);
  }
  void Read(float* to, const float* from, size_t count) const {
    CHECK(table->copy_to_host(device, to, from, count * sizeof(float), stream, nullptr) == BPS_OK);
  }
  fake_gpu_counts Counts() const {
    fake_gpu_counts counts;
    control->counts(&counts);
    return counts;
  }
  void ExpectNoRaces() const {
    char text[400] = "";
    if (control->race(0, text, sizeof text) != 0) Die(text);
  }

  const fake_gpu_control* control = nullptr;
  const bps_device_table* table = nullptr;
  bps_device* device = nullptr;
  bps_device_stream stream = nullptr;
};

struct Trainer {
  Trainer() {
    bps_open_args args = BPS_OPEN_ARGS_INIT;
    Ok(bps_open(&args, &session), "open");
    Ok(bps_session_info(session, &info), "info");
    const char* cpu = std::getenv("E2E_CPU_RANK");
    on_gpu = cpu == nullptr || std::atoi(cpu) != info.rank;
  }
  void Leave() {
    Ok(bps_shutdown(session, 10'000), "shutdown");
    Ok(bps_close(session), "close");
  }
  bps_tensor* Declare(const std::string& name, size_t count) const {
    const int64_t shape[] = {static_cast<int64_t>(count)};
    bps_declare_args args = BPS_DECLARE_ARGS_INIT;
    args.name = name.c_str();
    args.dtype = BPS_FLOAT32;
    args.shape = shape;
    args.ndim = 1;
    bps_tensor* tensor = nullptr;
    Ok(bps_declare(session, &args, &tensor), "declare");
    return tensor;
  }
  // As it is asked for most often: in place, in the trainer's stream, which is named again when the result is needed.
  bps_push_pull_args PushPull(const std::string& name, size_t count, float* memory, bps_streams* streams) const {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = Declare(name, count);
    args.input = args.output = memory;
    args.op = BPS_SUM;
    args.input_device = args.output_device = on_gpu ? BPS_CUDA : BPS_CPU;
    if (on_gpu) {
      streams->input = streams->output = gpu.stream;
      streams->output_later = 1;
      args.ext = &streams->ext;
    }
    args.timeout_ms = 30'000;
    return args;
  }

  const Gpu gpu;
  bps_session* session = nullptr;
  bps_info info = BPS_INFO_INIT;
  bool on_gpu = true;
  bps_buffer* kept[2] = {};  // that outlive the session
};

inline std::vector<float> Values(int rank, int round, size_t tensor, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((rank + 1) * (round + 3)) + static_cast<float>((i * 7 + tensor) % 1000);
  }
  return values;
}

inline std::vector<float> Sum(int size, int round, size_t tensor, size_t count) {
  std::vector<float> sum = Values(0, round, tensor, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> more = Values(rank, round, tensor, count);
    for (size_t i = 0; i < count; ++i) sum[i] += more[i];
  }
  return sum;
}

// In place, on the host.
inline bps_push_pull_args PushPullArgs(const Trainer& trainer, const std::string& name, uint32_t dtype, size_t count,
                                       int32_t op, void* memory) {
  const int64_t shape[] = {static_cast<int64_t>(count)};
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  declare.name = name.c_str();
  declare.dtype = dtype;
  declare.shape = shape;
  declare.ndim = 1;
  bps_tensor* tensor = nullptr;
  Ok(bps_declare(trainer.session, &declare, &tensor), "declare");
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = args.output = memory;
  args.op = op;
  args.timeout_ms = 60'000;
  return args;
}

inline bps_status* Submit(const Trainer& trainer, const std::string& name, uint32_t dtype, size_t count, int32_t op,
                          void* memory, bps_streams* streams, bps_request** request) {
  bps_push_pull_args args = PushPullArgs(trainer, name, dtype, count, op, memory);
  args.input_device = args.output_device = trainer.on_gpu ? BPS_CUDA : BPS_CPU;
  streams->input = streams->output = trainer.gpu.stream;
  streams->output_later = 1;
  if (trainer.on_gpu) args.ext = &streams->ext;
  return bps_push_pull(trainer.session, &args, request);
}

inline bps_status* SubmitOnCpu(const Trainer& trainer, const std::string& name, uint32_t dtype, size_t count,
                               int32_t op, void* memory, bps_request** request) {
  const bps_push_pull_args args = PushPullArgs(trainer, name, dtype, count, op, memory);
  return bps_push_pull(trainer.session, &args, request);
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_DEVICE_TRAINER_H_
