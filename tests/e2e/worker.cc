// worker.cc - a trainer for the tests of whole jobs: one scenario per run, by name.
//
//     e2e_worker sums|lives|loop|... [argument]
//
// Linked against libbyteps.so like any C program. Exits with 0 when all was as it should be; otherwise says what was
// not and exits with 1. The scenario `loop` ends with the error it met: exit code 3, the error on stdout.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "core/reduce/dtype.h"
#include "core/reduce/reduce.h"
#include "tests/e2e/allocation_counts.h"

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void Die(const std::string& what) {
  std::printf("FAILED: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

#define CHECK(condition) \
  if (!(condition)) Die(std::string(__FILE__ ":") + std::to_string(__LINE__) + ": " #condition)

// The outcome of a call that must succeed.
void Ok(bps_status* status, const char* what) {
  if (status == nullptr) return;
  Die(std::string(what) + ": code " + std::to_string(bps_status_code(status)) + ": " + bps_status_message(status));
}

struct Error {
  int32_t code = BPS_OK;
  std::string message;
  bool retryable = false;
};

Error Take(bps_status* status) {
  Error error{bps_status_code(status), bps_status_message(status), bps_status_retryable(status) != 0};
  bps_status_free(status);
  return error;
}

bool Has(const Error& error, const std::string& text) { return error.message.find(text) != std::string::npos; }

void Say(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
}

bps_session* Open() {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  Ok(bps_open(&args, &session), "bps_open");
  return session;
}

bps_info Info(bps_session* session) {
  bps_info info = BPS_INFO_INIT;
  Ok(bps_session_info(session, &info), "bps_session_info");
  return info;
}

void End(bps_session* session) {
  Ok(bps_shutdown(session, 20000), "bps_shutdown");
  bps_close(session);
}

bps_tensor* Declare(bps_session* session, const std::string& name, uint32_t dtype, int64_t elements) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  args.name = name.c_str();
  args.dtype = dtype;
  args.shape = &elements;
  args.ndim = 1;
  bps_tensor* tensor = nullptr;
  Ok(bps_declare(session, &args, &tensor), "bps_declare");
  return tensor;
}

bps_request* Start(bps_session* session, bps_tensor* tensor, const void* input, void* output, int32_t op,
                   int64_t timeout_ms = 0) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = input;
  args.output = output;
  args.op = op;
  args.timeout_ms = timeout_ms;
  bps_request* request = nullptr;
  Ok(bps_push_pull(session, &args, &request), "bps_push_pull");
  return request;
}

Error Wait(bps_request* request) {
  Error error = Take(bps_wait(request, 0));
  bps_request_free(request);
  return error;
}

Error PushPull(bps_session* session, bps_tensor* tensor, const void* input, void* output, int32_t op,
               int64_t timeout_ms = 0) {
  return Wait(Start(session, tensor, input, output, op, timeout_ms));
}

void Expect(const Error& error, int32_t code, const std::vector<std::string>& texts) {
  bool good = error.code == code;
  for (const std::string& text : texts) good = good && Has(error, text);
  if (good) return;
  std::string wanted;
  for (const std::string& text : texts) wanted += " \"" + text + "\"";
  Die("expected code " + std::to_string(code) + " with" + wanted + ", got code " + std::to_string(error.code) + ": " +
      error.message);
}

// What rank `rank` gives to a tensor: bytes that depend on everything, numbers that are harmless to add.
std::vector<uint8_t> Input(uint32_t dtype, size_t elements, int rank, uint64_t seed) {
  const size_t size = byteps::DtypeSize(dtype);
  std::vector<uint8_t> bytes(elements * size);
  uint64_t state = seed * 1000003 + static_cast<uint64_t>(rank) * 7919 + dtype;
  for (size_t i = 0; i < elements; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t random = state >> 33;
    const float value = static_cast<float>(static_cast<int64_t>(random % 4096) - 2048) / 256.0f;
    uint8_t* at = bytes.data() + i * size;
    if (dtype == BPS_FLOAT32) {
      std::memcpy(at, &value, size);
    } else if (dtype == BPS_FLOAT64) {
      const double wide = value;
      std::memcpy(at, &wide, size);
    } else if (dtype == BPS_FLOAT16) {
      const byteps::Float16 half = byteps::ToFloat16(value);
      std::memcpy(at, &half.bits, size);
    } else if (dtype == BPS_BFLOAT16) {
      const byteps::BFloat16 half = byteps::ToBFloat16(value);
      std::memcpy(at, &half.bits, size);
    } else {
      std::memcpy(at, &random, size);
    }
  }
  return bytes;
}

// The groups of the reduction: the hosts' workers, where the job has several hosts (tests/e2e/job.cc).
std::vector<uint32_t> Groups() {
  std::istringstream sizes(std::getenv("E2E_HOSTS") == nullptr ? "" : std::getenv("E2E_HOSTS"));
  return {std::istream_iterator<uint32_t>(sizes), std::istream_iterator<uint32_t>()};
}

// What the documented formula gives.
std::vector<uint8_t> Expected(uint32_t dtype, int32_t op, size_t elements, int workers, uint64_t seed) {
  std::vector<std::vector<uint8_t>> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < workers; ++rank) inputs.push_back(Input(dtype, elements, rank, seed));
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<uint8_t> result(elements * byteps::DtypeSize(dtype));
  if (elements != 0) byteps::Reduce({dtype, op}, pointers, Groups(), result.data(), elements);
  return result;
}

constexpr uint32_t kDtypes[] = {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16,
                                BPS_INT8,    BPS_UINT8,   BPS_INT32,   BPS_INT64};

void CheckSum(bps_session* session, const bps_info& info, uint32_t dtype, int32_t op, size_t elements, bool in_place) {
  const std::string name = std::string("t.") + byteps::DtypeName(dtype) + "." + std::to_string(elements);
  const uint64_t seed = elements + static_cast<uint64_t>(op) * 17;
  bps_tensor* tensor = Declare(session, name, dtype, static_cast<int64_t>(elements));
  std::vector<uint8_t> input = Input(dtype, elements, info.rank, seed);
  std::vector<uint8_t> output(input.size(), 0xee);
  void* to = in_place ? input.data() : output.data();
  const Error error = PushPull(session, tensor, input.data(), to, op);
  if (error.code != BPS_OK) Die(name + ": " + error.message);
  const std::vector<uint8_t> wanted = Expected(dtype, op, elements, info.size, seed);
  if ((in_place ? input : output) != wanted) Die(name + " op " + std::to_string(op) + ": wrong bits");
}

// ---- Scenarios ----

// All data types, operations and sizes, bit for bit.
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

// A buffer of the library's, freed at the end.
class OwnBuffer {
 public:
  OwnBuffer(bps_session* session, size_t size) {
    bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
    args.size = size;
    Ok(bps_buffer_alloc(session, &args, &buffer_), "bps_buffer_alloc");
  }
  ~OwnBuffer() { Ok(bps_buffer_free(buffer_), "bps_buffer_free"); }
  OwnBuffer(const OwnBuffer&) = delete;
  OwnBuffer& operator=(const OwnBuffer&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(bps_buffer_data(buffer_)); }

 private:
  bps_buffer* buffer_ = nullptr;
};

// How many mappings of this process have `name` in theirs.
size_t Mappings(const std::string& name) {
  std::ifstream file("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(file, line);) count += line.find(name) != std::string::npos ? 1 : 0;
  return count;
}

// How many bytes of mappings that have `name` in theirs lie on huge pages of shared memory.
size_t OnHugePages(const std::string& name) {
  std::ifstream file("/proc/self/smaps");
  size_t kilobytes = 0;
  bool ours = false;
  for (std::string line; std::getline(file, line);) {
    const bool header = line.find('-') < line.find(' ');
    if (header) ours = line.find(name) != std::string::npos;
    if (ours && line.rfind("ShmemPmdMapped:", 0) == 0) kilobytes += std::stoul(line.substr(line.find(':') + 1));
  }
  return kilobytes * 1024;
}

// Does the kernel put shared memory on huge pages only if it is told to, range by range?
bool HugePagesOnRequestAlone() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string text;
  std::getline(file, text);
  return text.find("[never]") != std::string::npos;
}

// Tensors in buffers, beside others, in place and not, whole and in parts; `kinds` as below, the same for all ranks, or
// by rank and round. `brief`: none is very large.
void Buffers(int kinds, bool brief) {
  bps_session* session = Open();
  const bps_info info = Info(session);
  constexpr size_t kOffset = 192;
  std::vector<size_t> sizes = {4096, (size_t{256} << 10) + 4, size_t{1} << 20};
  if (!brief) sizes.push_back((size_t{20} << 20) + 64);
  std::vector<std::unique_ptr<OwnBuffer>> kept;
  for (const size_t bytes : sizes) kept.push_back(std::make_unique<OwnBuffer>(session, 2 * bytes + 2 * kOffset));
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const size_t bytes = sizes[i], elements = bytes / 4;
      const uint64_t seed = static_cast<uint64_t>(round) * 10 + i;
      const int kind = kinds < 4 ? kinds : (info.rank + round) % 5;
      const std::vector<uint8_t> source = Input(BPS_FLOAT32, elements, info.rank, seed);
      const OwnBuffer once(session, bytes);
      std::vector<uint8_t> ordinary(bytes);
      uint8_t *input = nullptr, *output = nullptr;
      switch (kind) {
        case 0:  // in place, in a part of a buffer
          input = output = kept[i]->data() + kOffset;
          break;
        case 1:  // the two parts of a buffer, in turns
          input = kept[i]->data() + (round % 2 == 0 ? 0 : bytes + kOffset) + kOffset;
          output = kept[i]->data() + (round % 2 == 0 ? bytes + kOffset : 0) + kOffset;
          break;
        case 2:  // two buffers
          input = once.data();
          output = kept[i]->data();
          break;
        case 3:  // one buffer
          input = once.data();
          output = ordinary.data();
          break;
        default:  // none
          input = output = ordinary.data();
      }
      std::copy(source.begin(), source.end(), input);
      const Error error =
          PushPull(session, Declare(session, "b" + std::to_string(i), BPS_FLOAT32, static_cast<int64_t>(elements)),
                   input, output, BPS_SUM);
      if (error.code != BPS_OK) Die(error.message);
      const std::vector<uint8_t> expected = Expected(BPS_FLOAT32, BPS_SUM, elements, info.size, seed);
      CHECK(std::equal(expected.begin(), expected.end(), output));
      if (input != output) CHECK(std::equal(source.begin(), source.end(), input));
    }
  }
  // Nobody needs a copy in memory of the transport's own.
  if (kinds < 3 && info.num_servers == 0) CHECK(Mappings("byteps-memory") == 0);
  // They have come back often, but nobody copies from them: the time that huge pages take would be lost.
  if (HugePagesOnRequestAlone()) CHECK(OnHugePages("byteps-buffer") == 0);
  for (size_t i = 0; i < kept.size(); ++i) std::memset(kept[i]->data(), 0x5a, sizes[i]);
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  Ok(bps_barrier(session, &barrier), "bps_barrier");
  // What was freed goes, also where others had mapped it.
  const std::unique_ptr<OwnBuffer> last = std::move(kept.back());
  kept.clear();
  const size_t own = Mappings("byteps-buffer");
  CHECK(own <= 1 + static_cast<size_t>(info.size - 1) * (sizes.size() * 6));
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (Mappings("byteps-buffer") > static_cast<size_t>(info.size)) {
    if (Clock::now() > deadline) Die(std::to_string(Mappings("byteps-buffer")) + " buffers are still mapped");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  End(session);
  // As memory it outlives the session.
  CHECK(last->data()[sizes.back() - 1] == 0x5a);
  last->data()[0] = 1;
  CHECK(Mappings("byteps-buffer") <= 1);
}

// In the middle of its work one rank forbids all others to look into its memory.
void Guarded(int guarded_rank) {
  bps_session* session = Open();
  const bps_info info = Info(session);
  const size_t sizes[] = {(size_t{3} << 20) + 4, size_t{200} << 10, 40000};
  for (int round = 0; round < 40; ++round) {
    if (round == 20 && info.rank == guarded_rank) CHECK(::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
    std::vector<std::vector<uint8_t>> inputs, outputs;
    std::vector<bps_request*> requests;
    for (size_t i = 0; i < std::size(sizes); ++i) {
      const bool in_place = (i + static_cast<size_t>(round)) % 2 == 0;
      const auto elements = static_cast<int64_t>(sizes[i] / 4);
      inputs.push_back(Input(BPS_FLOAT32, sizes[i] / 4, info.rank, i));
      outputs.push_back(in_place ? std::move(inputs.back()) : std::vector<uint8_t>(sizes[i]));
      requests.push_back(Start(session, Declare(session, "g" + std::to_string(i), BPS_FLOAT32, elements),
                               in_place ? outputs.back().data() : inputs.back().data(), outputs.back().data(),
                               BPS_SUM));
    }
    for (size_t i = 0; i < std::size(sizes); ++i) {
      const Error error = Wait(requests[i]);
      if (error.code != BPS_OK) Die("round " + std::to_string(round) + ": " + error.message);
      CHECK(outputs[i] == Expected(BPS_FLOAT32, BPS_SUM, sizes[i] / 4, info.size, i));
    }
  }
  End(session);
}

size_t Descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

size_t ResidentKiB() {
  std::ifstream file("/proc/self/statm");
  size_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) / 1024;
}

long PageFaults() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Once it has settled, a tensor that is reduced again and again costs no page and no memory of its size.
void Steady(int rounds) {
  bps_session* session = Open();
  const bps_info info = Info(session);
  constexpr size_t kBytes = size_t{4} << 20, kElements = kBytes / 4;
  const OwnBuffer in_place(session, kBytes), first(session, kBytes), second(session, kBytes);
  bps_tensor* one = Declare(session, "one", BPS_FLOAT32, kElements);
  bps_tensor* two = Declare(session, "two", BPS_FLOAT32, kElements);
  const std::vector<uint8_t> source = Input(BPS_FLOAT32, kElements, info.rank, 5);
  const std::vector<uint8_t> expected = Expected(BPS_FLOAT32, BPS_SUM, kElements, info.size, 5);
  const auto round = [&](int number) {
    uint8_t* from = number % 2 == 0 ? first.data() : second.data();
    uint8_t* to = number % 2 == 0 ? second.data() : first.data();
    std::memcpy(in_place.data(), source.data(), kBytes);
    std::memcpy(from, source.data(), kBytes);
    bps_request* requests[] = {Start(session, one, in_place.data(), in_place.data(), BPS_SUM),
                               Start(session, two, from, to, BPS_SUM)};
    for (bps_request* request : requests) {
      const Error error = Wait(request);
      if (error.code != BPS_OK) Die(error.message);
    }
    CHECK(std::memcmp(in_place.data(), expected.data(), kBytes) == 0);
    CHECK(std::memcmp(to, expected.data(), kBytes) == 0);
  };
  for (int number = 0; number < 6; ++number) round(number);
  const long faults = PageFaults();
  const size_t resident = ResidentKiB(), descriptors = Descriptors(), mappings = Mappings("");
  for (int number = 0; number < rounds; ++number) round(number);
  // Memory that is new in each round costs thousands, memory that is only mapped anew 20 a round or more.
  const long new_faults = PageFaults() - faults;
  std::printf("%ld page faults in %d rounds\n", new_faults, rounds);
  if (new_faults > 10 * rounds)
    Die(std::to_string(new_faults) + " page faults in " + std::to_string(rounds) + " rounds");
  CHECK(ResidentKiB() < resident + 8192);
  CHECK(Descriptors() == descriptors);
  CHECK(Mappings("") <= mappings + 4);
  End(session);
}

// The same few tensors again and again, one by one and together. When all have been through a few rounds, they cost no
// allocation in any process of the job, so no registration with libfabric, and no page: small ones, large ones in the
// user's memory, and large ones in the library's own buffers. Needs programs that count (BUILD).
enum class Allocated { kSmall, kLarge, kLargeInBuffers };

// Holds the thread of the library that runs it until it is let go.
struct Hold {
  std::atomic<bool> begun{false}, let_go{false};
  static void Run(void* user, bps_status* error) {
    Ok(error, "held");
    auto* hold = static_cast<Hold*>(user);
    hold->begun = true;
    hold->begun.notify_all();
    hold->let_go.wait(false);
  }
};

// Many small tensors, which the library finds all at once: said before and after, so that its messages can be counted.
void Many(int tensors) {
  constexpr size_t kElements = 256;
  bps_session* session = Open();
  const bps_info info = Info(session);
  std::vector<bps_tensor*> declared;
  std::vector<std::vector<uint8_t>> inputs, outputs;
  for (int i = 0; i <= tensors; ++i) {
    declared.push_back(Declare(session, "m" + std::to_string(i), BPS_FLOAT32, kElements));
    inputs.push_back(Input(BPS_FLOAT32, kElements, info.rank, static_cast<uint64_t>(i)));
    outputs.emplace_back(inputs.back().size());
  }
  Hold hold;
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = declared.back();
  args.input = inputs.back().data();
  args.output = outputs.back().data();
  args.op = BPS_SUM;
  args.done = Hold::Run;
  args.user = &hold;
  Ok(bps_push_pull(session, &args, nullptr), "bps_push_pull");
  hold.begun.wait(false);
  std::vector<bps_request*> requests;
  for (size_t i = 0; i < static_cast<size_t>(tensors); ++i) {
    requests.push_back(Start(session, declared[i], inputs[i].data(), outputs[i].data(), BPS_SUM));
  }
  Say("many begin");
  hold.let_go = true;
  hold.let_go.notify_all();
  for (size_t i = 0; i < requests.size(); ++i) {
    Ok(bps_wait(requests[i], 0), "bps_wait");
    bps_request_free(requests[i]);
    CHECK(outputs[i] == Expected(BPS_FLOAT32, BPS_SUM, kElements, info.size, i));
  }
  Say("many end");
  End(session);
}

void Allocations(Allocated kind, int rounds) {
  // Of a process, however many the rounds: a queue may have become longer than ever, or a heartbeat have been due.
  constexpr uint64_t kMostAllocations = 20, kMostFaults = 32;
  constexpr int kSmallOnes = 8000;
  const bool large = kind != Allocated::kSmall, in_buffers = kind == Allocated::kLargeInBuffers;
  bps_session* session = Open();
  const bps_info info = Info(session);
  byteps::AllocationCounts counts(std::getenv(byteps::kAllocationsFile));
  std::vector<size_t> bytes =
      large ? std::vector<size_t>{4, 200000, size_t{2} << 20} : std::vector<size_t>{4, 4, 1000, 4096};
  const size_t watched = bytes.size();
  // The rest is there for the warm-up alone, in which all queues become longer than they will ever be while we watch.
  for (size_t i = 0; i < 2 * watched; ++i) bytes.push_back(bytes[i % watched]);
  std::vector<bps_tensor*> tensors;
  std::vector<std::vector<uint8_t>> values, expected;
  std::vector<uint8_t*> inputs, outputs, others;  // two outputs take turns, as DistributedOptimizer's do
  std::vector<std::unique_ptr<OwnBuffer>> buffers;
  const auto memory = [&](size_t size) -> uint8_t* {
    if (in_buffers) return buffers.emplace_back(std::make_unique<OwnBuffer>(session, size))->data();
    return values.emplace_back(size).data();
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t elements = bytes[i] / 4;
    tensors.push_back(Declare(session, "a" + std::to_string(i), BPS_FLOAT32, static_cast<int64_t>(elements)));
    const std::vector<uint8_t> source = Input(BPS_FLOAT32, elements, info.rank, i);
    inputs.push_back(memory(bytes[i]));
    std::copy(source.begin(), source.end(), inputs.back());
    outputs.push_back(memory(bytes[i]));
    others.push_back(memory(bytes[i]));
    expected.push_back(Expected(BPS_FLOAT32, BPS_SUM, elements, info.size, i));
  }
  std::vector<bps_request*> requests(bytes.size());
  const auto start = [&](size_t i) {
    std::swap(outputs[i], others[i]);
    requests[i] = Start(session, tensors[i], inputs[i], outputs[i], BPS_SUM);
  };
  const auto wait = [&](size_t i) {
    Ok(bps_wait(requests[i], 0), "bps_wait");
    bps_request_free(requests[i]);
    CHECK(std::equal(expected[i].begin(), expected[i].end(), outputs[i]));
    std::fill_n(outputs[i], bytes[i], uint8_t{0xee});
  };
  const auto together = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) start(i);
    for (size_t i = 0; i < count; ++i) wait(i);
  };
  const auto round = [&] {
    for (size_t i = 0; i < watched; ++i) start(i), wait(i);
    together(watched);
  };
  for (int number = 0; number < 20; ++number) together(bytes.size());
  // Rings of libfabric's, for thousands of completions, are filled for the first time once.
  for (int number = 0; number < kSmallOnes; ++number) {
    const size_t i = large ? 0 : static_cast<size_t>(number) % watched;
    start(i), wait(i);
  }
  // Nobody is further ahead than a round, so what one rank watches is a steady state everywhere.
  for (int number = 0; number < rounds; ++number) round();
  if (info.rank == 0) counts.Watch(true);
  for (int number = 0; number < rounds; ++number) round();
  if (info.rank == 0) counts.Watch(false);
  for (int number = 0; number < 3; ++number) round();
  if (info.rank == 0) {
    const std::vector<byteps::AllocationCount> taken = counts.Take();
    CHECK(taken.size() == static_cast<size_t>(info.size + info.num_servers));
    std::string wrong;
    for (const byteps::AllocationCount& count : taken) {
      std::printf("%s: %lu allocations of its own, %lu in libfabric, %lu page faults, in %d rounds\n",
                  count.process.c_str(), count.own, count.provider, count.faults, rounds);
      if (count.own + count.provider > kMostAllocations || count.faults > kMostFaults) wrong += " " + count.process;
    }
    if (!wrong.empty()) Die("allocations or page faults in a steady state:" + wrong);
  }
  buffers.clear();
  End(session);
}

// Many tensors in flight, submitted in another order on each rank, many times.
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

// Open, work, shut down, many times in one process. What leaks grows in both halves; what the allocator keeps for the
// next time grows once.
void Lives(int count) {
  size_t descriptors = 0, begin = 0, middle = 0;
  for (int life = 0; life < count; ++life) {
    bps_session* session = Open();
    const bps_info info = Info(session);
    CHECK(info.generation == static_cast<uint64_t>(life) + 1);
    CheckSum(session, info, BPS_FLOAT32, BPS_SUM, 100000, false);
    End(session);
    if (life == count / 5) descriptors = Descriptors(), begin = ResidentKiB();
    if (life == count * 3 / 5) middle = ResidentKiB();
  }
  const size_t end = ResidentKiB();
  std::printf("descriptors %zu -> %zu, resident %zu -> %zu -> %zu KiB\n", descriptors, Descriptors(), begin, middle,
              end);
  CHECK(Descriptors() <= descriptors);
  // Few lives say nothing about memory.
  if (count >= 50) CHECK(middle <= begin + 1024 || end <= middle + 1024);
}

// Many tensors at once, the most and the least urgent there can be among them.
void Priorities(bps_session* session) {
  constexpr int64_t kPriorities[] = {INT64_MIN, INT64_MAX, 0, INT64_MIN + 1, INT64_MAX - 1, -1, 1};
  const int32_t size = Info(session).size;
  std::vector<std::vector<float>> values;
  std::vector<bps_request*> requests;
  for (size_t i = 0; i < 7; ++i) values.emplace_back(100'000, static_cast<float>(i + 1));
  for (size_t i = 0; i < 7; ++i) {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = Declare(session, "priority." + std::to_string(i), BPS_FLOAT32, 100'000);
    args.input = args.output = values[i].data();
    args.op = BPS_SUM;
    args.priority = kPriorities[i];
    Ok(bps_push_pull(session, &args, &requests.emplace_back()), "bps_push_pull");
  }
  for (size_t i = 0; i < 7; ++i) {
    CHECK(Wait(requests[i]).code == BPS_OK);
    CHECK(values[i] == std::vector<float>(100'000, static_cast<float>(size) * static_cast<float>(i + 1)));
  }
}

// The second life of this process is in another job, at this port, with other servers: nothing is kept of those before.
void OtherServers(int port) {
  int32_t before = 0;
  for (int life = 0; life < 2; ++life) {
    bps_session* session = Open();
    const bps_info info = Info(session);
    CHECK(info.generation == 1);
    CHECK(info.num_servers == std::atoi(std::getenv("DMLC_NUM_SERVER")) && info.num_servers != before);
    before = info.num_servers;
    // The same names, which have other places now.
    for (size_t elements : {1, 1000, 1'000'000}) CheckSum(session, info, BPS_FLOAT32, BPS_SUM, elements, false);
    Priorities(session);
    End(session);
    setenv("DMLC_PS_ROOT_PORT", std::to_string(port).c_str(), 1);
    setenv("DMLC_NUM_SERVER", "3", 1);
  }
}

// Rounds in which bytes are altered on their way: each gives the right sum or DATA_LOSS, and the job goes on.
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

// Works until something goes wrong, then says what, and shows that everything after it fails at once.
int Loop(int64_t elements, bool in_buffer) {
  bps_session* session = Open();
  const bps_info info = Info(session);
  std::vector<float> ordinary(in_buffer ? 0 : static_cast<size_t>(elements), 1);
  const OwnBuffer buffer(session, in_buffer ? static_cast<size_t>(elements) * sizeof(float) : 0);
  float* const values = in_buffer ? reinterpret_cast<float*>(buffer.data()) : ordinary.data();
  std::fill_n(values, elements, 1.0f);
  bps_tensor* tensor = Declare(session, "loop", BPS_FLOAT32, elements);
  for (int round = 0;; ++round) {
    // The error may be met by the call itself as well as by the wait.
    bps_push_pull_args call = BPS_PUSH_PULL_ARGS_INIT;
    call.tensor = tensor;
    call.input = call.output = values;
    call.op = BPS_AVERAGE;
    bps_request* request = nullptr;
    bps_status* refused = bps_push_pull(session, &call, &request);
    const Error error = refused == nullptr ? Wait(request) : Take(refused);
    if (round == 3) Say("working");
    if (error.code == BPS_OK) continue;
    std::printf("error %d: %s\n", error.code, error.message.c_str());
    const auto began = Clock::now();
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = tensor;
    args.input = args.output = values;
    const Error later = Take(bps_push_pull(session, &args, nullptr));
    CHECK(later.message == error.message);
    bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
    CHECK(Take(bps_barrier(session, &barrier)).message == error.message);
    CHECK(Info(session).failed == 1);
    CHECK(info.failed == 0);
    Take(bps_shutdown(session, 0));
    bps_close(session);
    CHECK(Clock::now() - began < std::chrono::seconds(10));
    return 3;
  }
}

// A tensor of the storm: its memory is ordinary or the library's own, its result in place or elsewhere.
class StormTensor {
 public:
  StormTensor() = default;
  ~StormTensor() {
    if (buffer_ != nullptr) Ok(bps_buffer_free(buffer_), "bps_buffer_free");
  }
  StormTensor(const StormTensor&) = delete;
  StormTensor& operator=(const StormTensor&) = delete;

  Error Make(bps_session* session, size_t number, std::mt19937_64* random) {
    // Of a few bytes as well as of many partitions.
    elements = size_t{1} << (*random)() % 21;
    elements += (*random)() % elements;
    const bool in_place = (*random)() % 2 == 0, own = (*random)() % 2 == 0;
    bps_buffer_args buffer = BPS_BUFFER_ARGS_INIT;
    buffer.size = 2 * elements * sizeof(float);
    if (own) {
      if (const Error error = Take(bps_buffer_alloc(session, &buffer, &buffer_)); error.code != BPS_OK) return error;
    } else {
      ordinary_.resize(2 * elements);
    }
    input = own ? static_cast<float*>(bps_buffer_data(buffer_)) : ordinary_.data();
    output = in_place ? input : input + elements;
    const std::string name = "storm." + std::to_string(number);
    const auto shape = static_cast<int64_t>(elements);
    bps_declare_args args = BPS_DECLARE_ARGS_INIT;
    args.name = name.c_str();
    args.dtype = BPS_FLOAT32;
    args.shape = &shape;
    args.ndim = 1;
    return Take(bps_declare(session, &args, &tensor));
  }

  // Starts a sum into the output.
  Error Start(bps_session* session) {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = tensor;
    args.input = input;
    args.output = output;
    args.op = BPS_SUM;
    return Take(bps_push_pull(session, &args, &request));
  }
  bool IsAll(float value) const {
    return std::count(output, output + elements, value) == static_cast<ptrdiff_t>(elements);
  }

  size_t elements = 0;
  bps_tensor* tensor = nullptr;
  float *input = nullptr, *output = nullptr;
  bps_request* request = nullptr;

 private:
  std::vector<float> ordinary_;
  bps_buffer* buffer_ = nullptr;
};

// Tensors of all sizes, some at a time, each rank in another order, now and then a new one or a barrier, until an
// error. Every operation that is under way then must end, and what it says is told: "error CODE: MESSAGE", a line each.
int Storm(uint64_t seed) {
  bps_open_args open = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  bool failed = false;
  const auto tell = [&failed](const Error& error) {
    if (error.code == BPS_OK) return;
    failed = true;
    std::printf("error %d: %s\n", error.code, error.message.c_str());
  };
  tell(Take(bps_open(&open, &session)));
  if (failed) return 3;
  const bps_info info = Info(session);
  std::mt19937_64 shared(seed), own(seed * 1000 + static_cast<uint64_t>(info.rank));
  constexpr size_t kMost = 12;
  std::vector<std::unique_ptr<StormTensor>> tensors;
  std::vector<StormTensor*> chosen;
  for (int round = 1; !failed; ++round) {
    if (tensors.size() < 4 || (tensors.size() < kMost && shared() % 4 == 0)) {
      auto made = std::make_unique<StormTensor>();
      tell(made->Make(session, tensors.size(), &shared));
      if (failed) break;
      tensors.push_back(std::move(made));
    }
    chosen.clear();
    for (const auto& tensor : tensors) {
      if (shared() % 2 == 0) chosen.push_back(tensor.get());
    }
    std::shuffle(chosen.begin(), chosen.end(), own);
    const auto unit = static_cast<float>(round % 1000);
    for (StormTensor* each : chosen) {
      std::fill_n(each->input, each->elements, unit * static_cast<float>(info.rank + 1));
      // The error may be met by the call itself as well as by the wait.
      tell(each->Start(session));
    }
    const float sum = unit * static_cast<float>(info.size * (info.size + 1) / 2);
    for (StormTensor* each : chosen) {
      if (each->request == nullptr) continue;
      const Error error = Wait(std::exchange(each->request, nullptr));
      tell(error);
      if (error.code == BPS_OK && !each->IsAll(sum)) Die("a wrong sum in round " + std::to_string(round));
    }
    const bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
    if (shared() % 16 == 0) tell(Take(bps_barrier(session, &barrier)));
    if (round == 3) Say("working");
  }
  CHECK(!tensors.empty());
  // The tensors are ours again: nobody writes into them any more.
  constexpr float kOurs = -7;
  for (const auto& each : tensors) std::fill_n(each->output, each->elements, kOurs);
  const auto began = Clock::now();
  const Error later = tensors[0]->Start(session);
  tell(later);
  CHECK(later.code != BPS_OK && Info(session).failed == 1);
  Take(bps_shutdown(session, 0));
  CHECK(Clock::now() - began < std::chrono::seconds(10));
  for (const auto& each : tensors) CHECK(each->IsAll(kOurs));
  tensors.clear();
  bps_close(session);
  return 3;
}

// Ranks that disagree: an error on every rank, and the session goes on.
void Mismatches() {
  bps_session* session = Open();
  const bps_info info = Info(session);
  std::vector<float> values(100000, 1);
  const bool odd = info.rank % 2 == 1;
  const auto good = [&](const char* when) {
    std::vector<float> ones(1000, 1);
    const Error error =
        PushPull(session, Declare(session, "good", BPS_FLOAT32, 1000), ones.data(), ones.data(), BPS_SUM);
    if (error.code != BPS_OK) Die(std::string(when) + ": " + error.message);
    CHECK(ones[999] == static_cast<float>(info.size));
  };
  Expect(PushPull(session, Declare(session, "shape", BPS_FLOAT32, odd ? 20000 : 10000), values.data(), values.data(),
                  BPS_SUM),
         BPS_FAILED_PRECONDITION, {"\"shape\"", "rank 0", "rank 1", "float32, 10000", "float32, 20000"});
  good("after shapes");
  Expect(PushPull(session, Declare(session, "dtype", odd ? BPS_FLOAT32 : BPS_INT32, 10), values.data(), values.data(),
                  BPS_SUM),
         BPS_FAILED_PRECONDITION, {"\"dtype\"", "float32", "int32"});
  Expect(PushPull(session, Declare(session, "op", BPS_FLOAT32, 90000), values.data(), values.data(),
                  odd ? BPS_SUM : BPS_MAX),
         BPS_FAILED_PRECONDITION, {"\"op\"", "sum", "max"});
  good("after operations");
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  args.tensor = Declare(session, "root", BPS_FLOAT32, 90000);
  args.input = args.output = values.data();
  args.root = odd ? 1 : 0;
  bps_request* request = nullptr;
  Ok(bps_broadcast(session, &args, &request), "bps_broadcast");
  Expect(Wait(request), BPS_FAILED_PRECONDITION, {"\"root\"", "broadcast from rank 0", "broadcast from rank 1"});
  good("after roots");
  // The same names once more, this time in agreement.
  for (const char* name : {"shape", "op"}) {
    const Error error =
        PushPull(session, Declare(session, name, BPS_FLOAT32, 10000), values.data(), values.data(), BPS_MAX);
    if (error.code != BPS_OK) Die(std::string(name) + ": " + error.message);
  }
  End(session);
}

// Deadlines, cancels, duplicates.
void Patience() {
  bps_session* session = Open();
  const bps_info info = Info(session);
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  std::vector<float> values(300000, 1), other(300000, 1);
  bps_tensor* tensor = Declare(session, "late", BPS_FLOAT32, 300000);
  if (info.rank == 0) {
    // Nobody else submits: the error says who.
    const auto began = Clock::now();
    Expect(PushPull(session, tensor, values.data(), other.data(), BPS_SUM, 1000), BPS_DEADLINE_EXCEEDED,
           {"\"late\"", "rank 1"});
    CHECK(Clock::now() - began < std::chrono::seconds(30));
  }
  Ok(bps_barrier(session, &barrier), "barrier");
  if (info.rank != 0) {
    // That round has failed for everybody.
    const Error error = PushPull(session, tensor, values.data(), other.data(), BPS_SUM);
    CHECK(error.code == BPS_DEADLINE_EXCEEDED || error.code == BPS_ABORTED);
    CHECK(error.retryable);
  }
  const Error again = PushPull(session, tensor, values.data(), other.data(), BPS_SUM);
  if (again.code != BPS_OK) Die("after a deadline: " + again.message);

  // Nobody else takes part before the duplicate was tried: the round is open for certain.
  if (info.rank != 0) Ok(bps_barrier(session, &barrier), "barrier");
  bps_request* request = Start(session, tensor, values.data(), other.data(), BPS_SUM);
  if (info.rank == 0) {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = tensor;
    args.input = args.output = values.data();
    const Error duplicate = Take(bps_push_pull(session, &args, nullptr));
    Expect(duplicate, BPS_ALREADY_EXISTS, {"late"});
    Ok(bps_barrier(session, &barrier), "barrier");
  }
  const Error ended = Wait(request);
  if (ended.code != BPS_OK) Die("with a duplicate: " + ended.message);

  bps_tensor* given_up = Declare(session, "given.up", BPS_FLOAT32, 300000);
  if (info.rank == 0) {
    request = Start(session, given_up, values.data(), other.data(), BPS_SUM);
    // A wait that is shorter than the operation says what it waits for. (At first it may not be that far.)
    Error impatient;
    do {
      impatient = Take(bps_wait(request, 20));
      CHECK(impatient.code == BPS_DEADLINE_EXCEEDED && impatient.retryable);
    } while (!Has(impatient, "is pushed") && !Has(impatient, "not submitted by") &&
             Has(impatient, "had not ended after 20 ms: "));
    std::vector<const char*> words = {
        "had not ended after 20 ms: ", "push_pull (sum) of \"given.up\" (float32, 300000)", "active", "it goes on"};
    if (info.num_servers == 0) {  // the ranks know of each other
      words.insert(words.end(), {"not submitted by rank 1"});
    } else {
      words.insert(words.end(), {"no answer from server ", "is pushed", "name the ranks"});
    }
    for (const char* word : words) {
      if (!Has(impatient, word)) Die(std::string(word) + " is not in: " + impatient.message);
    }
    Ok(bps_cancel(request), "bps_cancel");
    Expect(Wait(request), BPS_CANCELLED, {});
  }
  Ok(bps_barrier(session, &barrier), "barrier");
  if (info.rank != 0) {
    Expect(PushPull(session, given_up, values.data(), other.data(), BPS_SUM), BPS_ABORTED, {"rank 0"});
  }
  const Error fine = PushPull(session, given_up, values.data(), other.data(), BPS_SUM);
  if (fine.code != BPS_OK) Die("after a cancel: " + fine.message);
  End(session);
}

// An open session that does nothing, until SIGUSR1: Job::ExpectIdle watches what it uses meanwhile.
void Idle() {
  // Of the library's threads, too: it must not end one of them.
  sigset_t go_on;
  ::sigemptyset(&go_on);
  ::sigaddset(&go_on, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &go_on, nullptr);
  bps_session* session = Open();
  CheckSum(session, Info(session), BPS_FLOAT32, BPS_SUM, 100000, false);
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  Ok(bps_barrier(session, &barrier), "barrier");
  Say("idle");
  int signal = 0;
  CHECK(::sigwait(&go_on, &signal) == 0);
  End(session);
}

// The time of a small round.
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

double CpuSeconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

// How fast large tensors are, and at what price.
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

// A child that uses the session gets an error; one that does not, disturbs nothing.
void Fork() {
  bps_session* session = Open();
  const bps_info info = Info(session);
  bps_tensor* tensor = Declare(session, "w", BPS_FLOAT32, 4);
  for (int i = 0; i < 5; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      float values[4] = {};
      bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
      args.tensor = tensor;
      args.input = args.output = values;
      const Error error =
          i % 2 == 0 ? Error{BPS_FAILED_PRECONDITION, "fork", false} : Take(bps_push_pull(session, &args, nullptr));
      if (i % 2 == 1) bps_close(session);
      ::_exit(error.code == BPS_FAILED_PRECONDITION && Has(error, "fork") ? 0 : 1);
    }
    CheckSum(session, info, BPS_FLOAT32, BPS_SUM, 500000, false);
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CheckSum(session, info, BPS_FLOAT32, BPS_SUM, 10, false);
  }
  End(session);
}

// Two sessions of different names side by side in each process.
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

// Opens, and tells the error.
int OpenFails() {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  const Error error = Take(bps_open(&args, &session));
  std::printf("error %d: %s\n", error.code, error.message.c_str());
  return error.code == BPS_OK ? 0 : 3;
}

// Nothing ever happens, because the scheduler "hoards" keeps it to itself.
void Hoarded() {
  bps_session* session = Open();
  std::vector<float> values(300000, 1);
  bps_request* request =
      Start(session, Declare(session, "kept", BPS_FLOAT32, 300000), values.data(), values.data(), BPS_SUM);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  Error impatient;
  do {
    impatient = Take(bps_wait(request, 20));
    CHECK(impatient.code == BPS_DEADLINE_EXCEEDED);
    if (Clock::now() > deadline) Die("the scheduler is not named: " + impatient.message);
  } while (!Has(impatient, "scheduler \"hoards\" has not given"));
  // What one has seen the other must see, too, before it goes.
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  Ok(bps_barrier(session, &barrier), "barrier");
  Ok(bps_cancel(request), "bps_cancel");
  const Error error = Wait(request);
  CHECK(error.code == BPS_CANCELLED || error.code == BPS_ABORTED);
  End(session);
}

// Rank 1 stands still before it takes part, until it is told to go on.
void Stall() {
  bps_session* session = Open();
  bps_info info = BPS_INFO_INIT;
  Ok(bps_session_info(session, &info), "bps_session_info");
  std::vector<float> values(300000, 1);
  bps_tensor* tensor = Declare(session, "late", BPS_FLOAT32, 300000);
  // Until the other has opened its session, too.
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  Ok(bps_barrier(session, &barrier), "barrier");
  if (info.rank == 1) ::raise(SIGSTOP);
  CHECK(PushPull(session, tensor, values.data(), values.data(), BPS_SUM).code == BPS_OK);
  CHECK(values[299999] == 2);
  End(session);
}

// The scheduler "stuck" does not come back: callers do, and hear of it.
void Stuck(int64_t elements) {
  bps_session* session = Open();
  std::vector<float> values(static_cast<size_t>(elements), 1);
  bps_request* request =
      Start(session, Declare(session, "kept", BPS_FLOAT32, elements), values.data(), values.data(), BPS_SUM);
  static std::atomic<int> called{0};
  static std::atomic<int32_t> called_with{BPS_OK};
  std::vector<float> others(static_cast<size_t>(elements), 1);
  bps_push_pull_args call = BPS_PUSH_PULL_ARGS_INIT;
  call.tensor = Declare(session, "called", BPS_FLOAT32, elements);
  call.input = call.output = others.data();
  call.done = [](void*, bps_status* status) {
    called_with = bps_status_code(status);
    bps_status_free(status);
    ++called;
  };
  Ok(bps_push_pull(session, &call, nullptr), "bps_push_pull");
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  bool described = false;
  Error error;
  do {
    const auto began = Clock::now();
    error = Take(bps_wait(request, 200));
    if (Clock::now() - began > std::chrono::seconds(10)) Die("bps_wait does not keep its own deadline");
    described |= error.code == BPS_DEADLINE_EXCEEDED && Has(error, "scheduler \"stuck\" has not returned from next");
    if (Clock::now() > deadline) Die("the scheduler does not end the session: " + error.message);
  } while (error.code == BPS_DEADLINE_EXCEEDED);
  CHECK(described);
  CHECK(error.code == BPS_INTERNAL && Has(error, "scheduler \"stuck\" has not returned from next"));
  while (called == 0) {
    if (Clock::now() > deadline) Die("the callback does not run");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(called_with == BPS_INTERNAL);
  // Nothing else blocks, either.
  const auto began = Clock::now();
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  CHECK(Take(bps_barrier(session, &barrier)).code == BPS_INTERNAL);
  CHECK(Take(bps_shutdown(session, 0)).code == BPS_INTERNAL);
  bps_request_free(request);
  Ok(bps_close(session), "bps_close");
  CHECK(called == 1);
  if (Clock::now() - began > std::chrono::seconds(15)) Die("the session took too long to end");
}

// Sums, in a process that may have so many open files.
void FewFiles(int files) {
  const rlimit limit = {static_cast<rlim_t>(files), static_cast<rlim_t>(files)};
  CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  Sums();
}

// Works beside `loop` for a while, then ends without a word.
void Vanish() {
  bps_session* session = Open();
  std::vector<float> values(10, 1);
  bps_tensor* tensor = Declare(session, "loop", BPS_FLOAT32, 10);
  for (int round = 0; round < 10; ++round) {
    CHECK(PushPull(session, tensor, values.data(), values.data(), BPS_AVERAGE).code == BPS_OK);
  }
  bps_close(session);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  const int argument = argc > 2 ? std::atoi(argv[2]) : 0;
  const std::map<std::string, std::function<int()>> scenarios = {
      {"sums", [] { return Sums(), 0; }},
      {"buffers", [&] { return Buffers(argument, false), 0; }},
      {"buffers_brief", [&] { return Buffers(argument, true), 0; }},
      {"guarded", [&] { return Guarded(argument), 0; }},
      {"steady", [&] { return Steady(argument), 0; }},
      {"many", [&] { return Many(static_cast<int>(argument)), 0; }},
      {"allocations", [&] { return Allocations(Allocated::kSmall, argument), 0; }},
      {"allocations_large", [&] { return Allocations(Allocated::kLarge, argument), 0; }},
      {"allocations_buffers", [&] { return Allocations(Allocated::kLargeInBuffers, argument), 0; }},
      {"orders", [&] { return Orders(argument > 0 ? argument : 5), 0; }},
      {"broadcasts", [] { return Broadcasts(), 0; }},
      {"few_files", [&] { return FewFiles(argument), 0; }},
      {"lives", [&] { return Lives(argument), 0; }},
      {"other_servers", [&] { return OtherServers(static_cast<int>(argument)), 0; }},
      {"altered", [] { return Altered(), 0; }},
      {"loop", [&] { return Loop(argument, false); }},
      {"loop_buffer", [&] { return Loop(argument, true); }},
      {"storm", [&] { return Storm(static_cast<uint64_t>(argument)); }},
      {"mismatches", [] { return Mismatches(), 0; }},
      {"patience", [] { return Patience(), 0; }},
      {"idle", [] { return Idle(), 0; }},
      {"latency", [&] { return Latency(argument), 0; }},
      {"bandwidth", [] { return Bandwidth(), 0; }},
      {"fork", [] { return Fork(), 0; }},
      {"sessions", [] { return Sessions(), 0; }},
      {"open_fails", [] { return OpenFails(); }},
      {"hoarded", [] { return Hoarded(), 0; }},
      {"stall", [] { return Stall(), 0; }},
      {"stuck", [&] { return Stuck(argument > 0 ? argument : 300000), 0; }},
      {"vanish", [] { return Vanish(), 0; }},
  };
  auto it = scenarios.find(scenario);
  if (it == scenarios.end()) {
    std::fprintf(stderr, "e2e_worker: no scenario \"%s\"\n", scenario.c_str());
    return 2;
  }
  const int code = it->second();
  Say("done");
  return code;
}
