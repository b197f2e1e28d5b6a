// gpu_worker.cc - a worker whose program on a GPU (a simulated one) comes to operations of byteps.jax: the handlers of
// libbyteps_jax.so are called as XLA calls them. One scenario per run, by name.
//
//     gpu_worker sums|collectives|operands|errors|second|death
//
// Exits with 0 when all was as it should be; otherwise says what was not and exits with 1.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "tests/e2e/device_trainer.h"
#include "tests/frameworks/jax/native/call_frame.h"

namespace byteps::jax {
namespace {

constexpr XLA_FFI_DataType kFloat = XLA_FFI_DataType_F32;

// The context of the first GPU, which XLA makes current on the thread that runs a program.
class CurrentContext {
 public:
  CurrentContext() {
    void* driver = dlopen(std::getenv("E2E_GPUS"), RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr) Die(dlerror());
    const auto call = [driver](const char* name, auto... arguments) {
      auto* function = reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(driver, name));
      CHECK(function != nullptr && function(arguments...) == 0);
    };
    void* context = nullptr;
    call("cuInit", 0u);
    call("cuDeviceGet", &device_, 0);
    call("cuDevicePrimaryCtxRetain", &context, device_);
    call("cuCtxPushCurrent_v2", context);
    pop_ = [call, device = device_] {
      void* left = nullptr;
      call("cuCtxPopCurrent_v2", &left);
      call("cuDevicePrimaryCtxRelease_v2", device);
    };
  }
  ~CurrentContext() { pop_(); }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  int device_ = 0;
  std::function<void()> pop_;
};

// The shared object, found as the package byteps finds it, and connected to the trainer's session.
class Shim {
 public:
  Shim() : object_(dlopen(std::getenv("JAX_SHIM"), RTLD_NOW | RTLD_LOCAL)) {
    if (object_ == nullptr) Die(dlerror());
    push_pull = Find<XLA_FFI_Handler>("bps_shim_jax_push_pull_on_gpu");
    broadcast = Find<XLA_FFI_Handler>("bps_shim_jax_broadcast_on_gpu");
    collective = Find<XLA_FFI_Handler>("bps_shim_jax_collective_on_gpu");
    refuse = Find<XLA_FFI_Handler>("bps_shim_jax_refuse_device");
  }

  void Attach(bps_session* session) const {
    Dl_info library = {};
    CHECK(dladdr(reinterpret_cast<void*>(&bps_open_versioned), &library) != 0);
    char error[400] = "";
    if (Find<int(const char*, void*, char*, size_t)>("bps_shim_attach")(library.dli_fname, session, error,
                                                                        sizeof error) != 1) {
      Die(error);
    }
  }
  void Detach(bps_session* session) const { Find<void(void*)>("bps_shim_detach")(session); }

  XLA_FFI_Handler* push_pull;
  XLA_FFI_Handler* broadcast;
  XLA_FFI_Handler* collective;
  XLA_FFI_Handler* refuse;

 private:
  template <typename Function>
  Function* Find(const char* name) const {
    auto* found = reinterpret_cast<Function*>(dlsym(object_, name));
    if (found == nullptr) Die(dlerror());
    return found;
  }
  void* const object_;
  const CurrentContext context_;
};

CallFrame PushPull(void* stream, const std::string& name, float* input, float* output, size_t count) {
  CallFrame call(stream);
  call.Argument(kFloat, input, {static_cast<int64_t>(count)}).Result(kFloat, output, {static_cast<int64_t>(count)});
  call.Text("name", name).Number("op", BPS_SUM).Number("asynchronous", 0).Number("priority", 0);
  return call;
}

void Ok(const CallFrame::Answer& answer) {
  if (answer.code != 0) Die("code " + std::to_string(answer.code) + ": " + answer.message);
}

void Fails(const CallFrame::Answer& answer, int code, const std::string& text) {
  if (answer.code != code || answer.message.find(text) == std::string::npos) {
    Die("code " + std::to_string(answer.code) + ", not " + std::to_string(code) + ": " + answer.message +
        "; expected in it: " + text);
  }
}

void Equal(const float* found, const std::vector<float>& expected) {
  CHECK(std::memcmp(found, expected.data(), expected.size() * sizeof(float)) == 0);
}

// Steps of a program: each tensor is written, reduced, read, and written again in the program's stream, of which the
// host waits for nothing but the operations.
void Sums() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  Shim shim;
  shim.Attach(trainer.session);
  const size_t counts[] = {1, 300, 200'000, 700'001};
  struct Read {
    float* copy;
    std::vector<float> expected;
  };
  std::vector<Read> reads;
  std::vector<float*> inputs, outputs;
  for (const size_t count : counts) {
    inputs.push_back(gpu.Allocate(count));
    outputs.push_back(gpu.Allocate(count));
  }
  for (int round = 0; round < 6; ++round) {
    for (size_t t = 0; t < std::size(counts); ++t) {
      // In place, and not.
      float* const output = round % 2 == 0 ? inputs[t] : outputs[t];
      gpu.Write(inputs[t], Values(trainer.info.rank, round, t, counts[t]));
      Ok(PushPull(gpu.stream, "t" + std::to_string(t), inputs[t], output, counts[t]).Run(shim.push_pull));
      reads.push_back({gpu.Host(counts[t]), Sum(trainer.info.size, round, t, counts[t])});
      gpu.Read(reads.back().copy, output, counts[t]);
      // XLA gives both to other arrays.
      const std::vector<float> other(counts[t], -7);
      gpu.Write(inputs[t], other);
      gpu.Write(outputs[t], other);
    }
  }
  CHECK(gpu.Counts().synchronisations == 0);

  gpu.Write(inputs[3], Values(trainer.info.rank, 1, 1, counts[3]));
  const auto count = static_cast<int64_t>(counts[3]);
  CallFrame broadcast(gpu.stream);
  broadcast.Argument(kFloat, inputs[3], {count}).Result(kFloat, outputs[3], {count});
  broadcast.Text("name", "b").Number("root", 1).Number("priority", 0);
  Ok(broadcast.Run(shim.broadcast));
  reads.push_back({gpu.Host(counts[3]), Values(1, 1, 1, counts[3])});
  gpu.Read(reads.back().copy, outputs[3], counts[3]);

  // Nothing to send, and no memory.
  Ok(PushPull(gpu.stream, "empty", nullptr, nullptr, 0).Run(shim.push_pull));

  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (const Read& read : reads) Equal(read.copy, read.expected);
  gpu.ExpectNoRaces();
  shim.Detach(trainer.session);
  trainer.Leave();
}

// A collective of `rows` rows of `width` values into `result_rows` such rows.
CallFrame Collective(void* stream, const std::string& name, int32_t kind, float* input, size_t rows, float* output,
                     size_t result_rows, size_t width, std::vector<int64_t> ranks = {0, 1}) {
  const auto across = static_cast<int64_t>(width);
  CallFrame call(stream);
  call.Argument(kFloat, rows == 0 ? nullptr : input, {static_cast<int64_t>(rows), across});
  call.Result(kFloat, result_rows == 0 ? nullptr : output, {static_cast<int64_t>(result_rows), across});
  call.Text("name", name).Number("kind", kind).Number("op", BPS_SUM).Number("root", 1).Number("priority", 0);
  call.Numbers("ranks", std::move(ranks));
  return call;
}

// What goes from worker to worker: each input is written, and each result read, in the program's stream, of which the
// host waits for nothing but the operations; then XLA gives the memory to other arrays.
void Collectives() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  Shim shim;
  shim.Attach(trainer.session);
  const int rank = trainer.info.rank;
  struct Read {
    float* copy;
    std::vector<float> expected;
  };
  std::vector<Read> reads;
  constexpr size_t kMost = 600'000;
  float* const input = gpu.Allocate(kMost);
  float* const output = gpu.Allocate(2 * kMost);
  const auto part = [](const std::vector<float>& of, size_t from, size_t count) {
    const auto begin = of.begin() + static_cast<ptrdiff_t>(from);
    return std::vector<float>(begin, begin + static_cast<ptrdiff_t>(count));
  };
  const auto run = [&](CallFrame call, const std::vector<float>& values, const float* result,
                       const std::vector<float>& expected) {
    gpu.Write(input, values);
    Ok(call.Run(shim.collective));
    reads.push_back({gpu.Host(expected.size()), expected});
    gpu.Read(reads.back().copy, result, expected.size());
    gpu.Write(input, std::vector<float>(values.size(), -7));
    gpu.Write(output, std::vector<float>(2 * values.size(), -7));
  };
  for (const size_t width : {size_t{1}, size_t{50}, size_t{150'000}}) {
    constexpr size_t kRows = 4;
    const size_t count = kRows * width;
    const std::string of = " of " + std::to_string(width);
    for (int round = 0; round < 3; ++round) {
      const std::vector<float> own = Values(rank, round, width, count);
      const std::vector<float> sum = Sum(2, round, width, count);
      const std::vector<float> all[] = {Values(0, round, width, count), Values(1, round, width, count)};

      std::vector<float> gathered = all[0];
      gathered.insert(gathered.end(), all[1].begin(), all[1].end());
      run(Collective(gpu.stream, "gather" + of, BPS_ALL_GATHER, input, kRows, output, 2 * kRows, width), own, output,
          gathered);

      const size_t half = count / 2, first = rank == 0 ? 0 : half;
      run(Collective(gpu.stream, "scatter" + of, BPS_REDUCE_SCATTER, input, kRows, output, kRows / 2, width), own,
          output, part(sum, first, half));

      std::vector<float> swapped = part(all[0], first, half);
      const std::vector<float> from_other = part(all[1], first, half);
      swapped.insert(swapped.end(), from_other.begin(), from_other.end());
      run(Collective(gpu.stream, "exchange" + of, BPS_ALL_TO_ALL, input, kRows, output, kRows, width), own, output,
          swapped);

      // In place, as push_pull and broadcast of a process set are called.
      run(Collective(gpu.stream, "sum" + of, BPS_ALL_REDUCE, input, kRows, input, kRows, width), own, input, sum);
      run(Collective(gpu.stream, "root" + of, BPS_BROADCAST, input, kRows, input, kRows, width), own, input, all[1]);
      // A set of one rank.
      run(Collective(gpu.stream, "alone" + of, BPS_ALL_GATHER, input, kRows, output, kRows, width, {rank}), own, output,
          own);
    }
  }
  CHECK(gpu.Counts().synchronisations == 0);

  // Nothing to send, and no memory.
  Ok(Collective(gpu.stream, "empty", BPS_ALL_GATHER, nullptr, 0, nullptr, 0, 3).Run(shim.collective));
  // The ranks have different numbers of rows, which a gather allows and a compiled program does not.
  const size_t rows = rank == 0 ? 1 : 4;
  Fails(Collective(gpu.stream, "too small", BPS_ALL_GATHER, input, rows, output, 2 * rows, 50).Run(shim.collective),
        BPS_INVALID_ARGUMENT, "too small");
  Fails(Collective(gpu.stream, "too large", BPS_ALL_GATHER, input, rows - 1, output, 8, 50).Run(shim.collective),
        BPS_FAILED_PRECONDITION, "all ranks have as many rows");

  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  for (const Read& read : reads) Equal(read.copy, read.expected);
  gpu.ExpectNoRaces();
  shim.Detach(trainer.session);
  trainer.Leave();
}

// The name and the number of a device as operands, which lie in the GPU's memory, too: on rank 0. Rank 1 has the name
// that these make as the attribute, and the two meet.
void Operands() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  Shim shim;
  shim.Attach(trainer.session);
  constexpr size_t kCount = 100;
  float* const memory = gpu.Allocate(kCount);
  const auto bytes_of = [](const void* from, size_t size) {
    const auto* bytes = static_cast<const std::byte*>(from);
    return std::vector<std::byte>(bytes, bytes + size);
  };
  // The second is the longest that there may be; it is padded to more than a page.
  for (const size_t length : {size_t{5}, size_t{4094}}) {
    const std::string name(length, 'n');
    std::string padded = name;
    padded.resize(length + 64, '\0');
    void* const text = gpu.AllocateBytes(padded.size());
    gpu.WriteBytes(text, bytes_of(padded.data(), padded.size()));
    const int32_t number = 3;
    void* const device = gpu.AllocateBytes(sizeof number);
    gpu.WriteBytes(device, bytes_of(&number, sizeof number));
    gpu.Write(memory, Values(trainer.info.rank, 0, length, kCount));
    CallFrame call = PushPull(gpu.stream, trainer.info.rank == 0 ? "" : name + "/3", memory, memory, kCount);
    if (trainer.info.rank == 0) {
      call.Argument(XLA_FFI_DataType_U8, text, {static_cast<int64_t>(padded.size())});
      call.Argument(XLA_FFI_DataType_S32, device, {});
    }
    Ok(call.Run(shim.push_pull));
    float* const copy = gpu.Host(kCount);
    gpu.Read(copy, memory, kCount);
    CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
    Equal(copy, Sum(trainer.info.size, 0, length, kCount));
  }
  gpu.ExpectNoRaces();
  shim.Detach(trainer.session);
  trainer.Leave();
}

// Each an error of XLA's with the library's words; the session goes on.
void Errors() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  Shim shim;
  constexpr size_t kCount = 1000;
  float* const memory = gpu.Allocate(kCount);
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, kCount));
  Fails(PushPull(gpu.stream, "w", memory, memory, kCount).Run(shim.push_pull), BPS_FAILED_PRECONDITION, "bps.init()");
  shim.Attach(trainer.session);
  const size_t count = trainer.info.rank == 0 ? kCount : kCount / 2;
  Fails(PushPull(gpu.stream, "w", memory, memory, count).Run(shim.push_pull), BPS_FAILED_PRECONDITION,
        "rank 1 (worker");
  CallFrame wrong(gpu.stream);
  wrong.Argument(XLA_FFI_DataType_U16, memory, {3}).Result(XLA_FFI_DataType_U16, memory, {3});
  wrong.Text("name", "u").Number("op", BPS_SUM).Number("asynchronous", 0).Number("priority", 0);
  Fails(wrong.Run(shim.push_pull), BPS_INVALID_ARGUMENT, "data type");
  std::vector<float> ordinary(kCount);
  Fails(PushPull(gpu.stream, "h", ordinary.data(), ordinary.data(), kCount).Run(shim.push_pull),
        XLA_FFI_Error_Code_INTERNAL, "cuPointerGetAttribute");
  CallFrame elsewhere(gpu.stream);
  elsewhere.Argument(kFloat, memory, {3}).Result(kFloat, memory, {3});
  Fails(elsewhere.Run(shim.refuse), BPS_UNIMPLEMENTED, "jax.device_put");
  // The ranks disagree.
  const int32_t kind = trainer.info.rank == 0 ? BPS_ALL_GATHER : BPS_ALL_TO_ALL;
  Fails(Collective(gpu.stream, "g", kind, memory, 2, memory + kCount / 2, 4, 1).Run(shim.collective),
        BPS_FAILED_PRECONDITION, "rank 1");
  gpu.control->capture(gpu.stream, 1);
  Fails(PushPull(gpu.stream, "c", memory, memory, kCount).Run(shim.push_pull), BPS_FAILED_PRECONDITION, "captured");
  gpu.control->capture(gpu.stream, 0);

  gpu.Write(memory, Values(trainer.info.rank, 0, 0, kCount));
  Ok(PushPull(gpu.stream, "good", memory, memory, kCount).Run(shim.push_pull));
  float* const copy = gpu.Host(kCount);
  gpu.Read(copy, memory, kCount);
  CHECK(gpu.table->synchronize(gpu.device, gpu.stream, nullptr) == BPS_OK);
  Equal(copy, Sum(trainer.info.size, 0, 0, kCount));
  gpu.ExpectNoRaces();
  shim.Detach(trainer.session);
  trainer.Leave();
}

// Arrays of both GPUs of a process: which one, nobody tells the handler.
void SecondGpu() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  Shim shim;
  shim.Attach(trainer.session);
  const Gpu other(1);
  constexpr size_t kCount = 20'000;
  for (int round = 0; round < 4; ++round) {
    const bool second = round % 2 == 1;
    bps_device* const device = second ? other.device : gpu.device;
    const bps_device_stream used = second ? other.stream : gpu.stream;
    void* memory = nullptr;
    CHECK(gpu.table->allocate(device, kCount * sizeof(float), &memory, nullptr) == BPS_OK);
    float* const host = gpu.Host(kCount);
    const std::vector<float> values = Values(trainer.info.rank, round, 0, kCount);
    std::memcpy(host, values.data(), kCount * sizeof(float));
    CHECK(gpu.table->copy_to_device(device, memory, host, kCount * sizeof(float), used, nullptr) == BPS_OK);
    auto* const array = static_cast<float*>(memory);
    Ok(PushPull(used, second ? "second" : "first", array, array, kCount).Run(shim.push_pull));
    float* const copy = gpu.Host(kCount);
    CHECK(gpu.table->copy_to_host(device, copy, memory, kCount * sizeof(float), used, nullptr) == BPS_OK);
    CHECK(gpu.table->synchronize(device, used, nullptr) == BPS_OK);
    Equal(copy, Sum(trainer.info.size, round, 0, kCount));
  }
  gpu.ExpectNoRaces();
  shim.Detach(trainer.session);
  trainer.Leave();
}

// Rank 1 is killed while rank 0's program is inside the operation.
void Death() {
  Trainer trainer;
  const Gpu& gpu = trainer.gpu;
  Shim shim;
  shim.Attach(trainer.session);
  if (trainer.info.rank == 1) {
    for (;;) pause();  // until it is killed
  }
  float* const memory = gpu.Allocate(300'000);
  gpu.Write(memory, Values(trainer.info.rank, 0, 0, 300'000));
  std::puts("waiting");
  std::fflush(stdout);
  Fails(PushPull(gpu.stream, "w", memory, memory, 300'000).Run(shim.push_pull), BPS_UNAVAILABLE, "rank 1");
  shim.Detach(trainer.session);
  byteps::Ok(bps_close(trainer.session), "close");
  gpu.ExpectNoRaces();
}

}  // namespace
}  // namespace byteps::jax

int main(int count, char** arguments) {
  const std::string scenario = count > 1 ? arguments[1] : "";
  if (scenario == "sums")
    byteps::jax::Sums();
  else if (scenario == "collectives")
    byteps::jax::Collectives();
  else if (scenario == "operands")
    byteps::jax::Operands();
  else if (scenario == "errors")
    byteps::jax::Errors();
  else if (scenario == "second")
    byteps::jax::SecondGpu();
  else if (scenario == "death")
    byteps::jax::Death();
  else
    byteps::Die("no scenario \"" + scenario + "\"");
  return 0;
}
