// What operations do with memory: buffers of the library's own, memory that may not be read, pages, allocations.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "tests/e2e/allocation_counts.h"
#include "tests/e2e/scenarios.h"
#include "tests/e2e/trainer.h"

namespace byteps::e2e {
namespace {

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

long PageFaults() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

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

}  // namespace

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
  // No member needs a copy in memory of the transport's own.
  if (kinds < 3 && info.num_servers == 0) CHECK(Mappings("byteps-memory") == 0);
  // They have come back often, but no member copies from them: the time that huge pages take would be lost.
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

void Large(int megabytes) {
  bps_session* session = Open();
  const bps_info info = Info(session);
  const size_t elements = static_cast<size_t>(megabytes) << 18;
  const std::unique_ptr<float[]> input(new float[elements]), output(new float[elements]);
  std::fill_n(input.get(), elements, static_cast<float>(info.rank + 1));
  bps_tensor* tensor = Declare(session, "large", BPS_FLOAT32, static_cast<int64_t>(elements));
  // From the third on the library asks for huge pages.
  for (int round = 0; round < 4; ++round) {
    const Error error = PushPull(session, tensor, input.get(), output.get(), BPS_SUM);
    if (error.code != BPS_OK) Die(error.message);
    const float expected = static_cast<float>(info.size * (info.size + 1)) / 2;
    CHECK(std::all_of(output.get(), output.get() + elements, [&](float each) { return each == expected; }));
    std::fill_n(output.get(), elements, 0.0f);
  }
  End(session);
}

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
  // Of a process, however many the rounds: a queue may have become longer than ever.
  constexpr uint64_t kMostAllocations = 20, kMostFaults = 32;
  // Of a heartbeat, sent and received; how many are due depends on how long the rounds take, not on their number.
  constexpr uint64_t kOfHeartbeat = 3;
  constexpr double kHeartbeatSeconds = 5;  // BYTEPS_HEARTBEAT_INTERVAL
  const bool has_heartbeats = std::getenv("BYTEPS_HEARTBEAT_INTERVAL") == nullptr;
  constexpr int kSmallOnes = 8000, kWatches = 3;
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
  // No member is further ahead than a round, so what one rank watches is a steady state everywhere.
  for (int number = 0; number < rounds; ++number) round();
  // What grows once, since the kernel has let some process wait for longer than ever, is seen once; what each round
  // allocates is seen in every watch.
  std::string wrong;
  for (int left = kWatches; left > 0; --left) {
    if (info.rank == 0) counts.Watch(true);
    const auto began = std::chrono::steady_clock::now();
    for (int number = 0; number < rounds; ++number) round();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (info.rank == 0) {
      counts.Watch(false);
      const std::vector<byteps::AllocationCount> taken = counts.Take();
      CHECK(taken.size() == static_cast<size_t>(info.size + info.num_servers));
      const auto beats = has_heartbeats ? static_cast<uint64_t>(took.count() / kHeartbeatSeconds) + 1 : uint64_t{0};
      wrong.clear();
      for (const byteps::AllocationCount& count : taken) {
        std::printf("%s: %lu allocations of its own, %lu in libfabric, %lu page faults, in %d rounds and %.1f s\n",
                    count.process.c_str(), count.own, count.provider, count.faults, rounds, took.count());
        if (count.own + count.provider > kMostAllocations + kOfHeartbeat * beats || count.faults > kMostFaults) {
          wrong += " " + count.process;
        }
      }
      counts.TellAgain(!wrong.empty());
    }
    for (int number = 0; number < 3; ++number) round();
    if (!counts.again()) break;
  }
  if (!wrong.empty()) Die("allocations or page faults in a steady state:" + wrong);
  buffers.clear();
  End(session);
}

}  // namespace byteps::e2e
