// reduce_benchmark - the loops of core/reduce/reduce.h next to a plain c = a + b, and to the memory's bandwidth, in one
// run.
//
//     bazel run -c opt //tests/core/reduce:reduce_benchmark [-- <seconds per line, 0.4> <kernels: AVX2, scalar, ...>]
//
// "cache" folds 64 KiB per input, so that all of it is in the second-level cache; "memory" 64 MiB per input. Bytes are
// those read and written, each input and output once; the plain loop is compiled for AVX2 where there is AVX2. What is
// measured takes turns with the plain loop, so that a machine that drifts drifts for both; ratios are of medians.

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/reduce/dtype.h"
#include "core/reduce/reduce.h"
#include "core/reduce/reduce_kernels.h"

namespace byteps {
namespace {

constexpr size_t kMostInputs = 8;
constexpr size_t kCache = size_t{64} << 10;
constexpr size_t kMemory = size_t{64} << 20;

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What a programmer would write.
#if defined(__x86_64__)
__attribute__((noinline, target_clones("default", "avx2")))
#else
__attribute__((noinline))
#endif
void PlainLoop(const float* a, const float* b, float* c, size_t n) {
  for (size_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

// Pages that are there, and huge where the kernel can: no page fault is measured, nor who got lucky.
std::byte* Pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  auto at = (reinterpret_cast<uintptr_t>(memory) + (2 << 20) - 1) / (2 << 20) * (2 << 20);
  madvise(reinterpret_cast<void*>(at), bytes, MADV_HUGEPAGE);
  // Small numbers in every type; no subnormals, which are slow.
  auto* words = reinterpret_cast<uint32_t*>(at);
  for (size_t i = 0; i < bytes / 4; ++i) words[i] = 0x3c003c00u + static_cast<uint32_t>(i % 7);
  return reinterpret_cast<std::byte*>(at);
}

// Seconds of this thread per call: others may have the processor in between.
double Once(const std::function<void()>& call, int repeat) {
  const double start = Seconds(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < repeat; ++i) call();
  return (Seconds(CLOCK_THREAD_CPUTIME_ID) - start) / repeat;
}

double Median(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + static_cast<ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}

struct Pair {
  double seconds;  // per call
  double plain;
  double ratio;  // of the plain loop's to the call's
};

// Both, in turns.
Pair Compare(double seconds, const std::function<void()>& call, const std::function<void()>& plain) {
  const double first = std::max({Once(call, 3), Once(plain, 3), 1e-8});
  const int repeat = std::max(1, static_cast<int>(1e-3 / first));
  std::vector<double> calls;
  std::vector<double> plains;
  std::vector<double> ratios;
  const double until = Seconds(CLOCK_MONOTONIC) + 2 * seconds;
  do {
    calls.push_back(Once(call, repeat));
    plains.push_back(Once(plain, repeat));
    ratios.push_back(plains.back() / calls.back());
  } while (Seconds(CLOCK_MONOTONIC) < until || calls.size() < 5);
  return {Median(calls), Median(plains), Median(ratios)};
}

struct Case {
  uint32_t dtype;
  size_t inputs;
  bool streamed;
};

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) / 2 : 0.2;
  const ReduceKernels* kernels = BestKernels();
  if (argc > 2) {
    kernels = nullptr;
    for (const ReduceKernels& known : VectorKernels()) {
      if (std::string(known.name) == argv[2]) kernels = &known;
    }
  }
  std::printf("kernels: %s\n", kernels != nullptr ? kernels->name : ScalarKernels().name);
  std::vector<std::byte*> pages;
  for (size_t i = 0; i < kMostInputs + 1; ++i) pages.push_back(Pages(kMemory));

  for (const size_t bytes : {kCache, kMemory}) {
    // In cache, inputs of one page beside one another would fall on the same sets.
    const auto place = [&](size_t i) { return bytes == kMemory ? pages[i] : pages[0] + i * (bytes + 4352); };
    const auto plain = [&] {
      PlainLoop(reinterpret_cast<float*>(place(0)), reinterpret_cast<float*>(place(1)),
                reinterpret_cast<float*>(place(kMostInputs)), bytes / 4);
    };
    const Pair copy = Compare(
        seconds, [&] { std::memcpy(place(kMostInputs), place(0), bytes); }, plain);
    std::printf("\n%s, %zu KiB per input; plain c = a + b %.1f GB/s, memcpy %.1f GB/s\n\n",
                bytes == kMemory ? "From memory" : "In cache", bytes >> 10,
                3e-9 * static_cast<double>(bytes) / copy.plain, 2e-9 * static_cast<double>(bytes) / copy.seconds);
    std::printf("| type | inputs | stores | GB/s | over the plain loop |\n|---|---:|---|---:|---:|\n");
    for (const uint32_t dtype : {BPS_FLOAT32, BPS_BFLOAT16, BPS_FLOAT16, BPS_FLOAT64, BPS_INT32, BPS_INT8}) {
      for (const size_t inputs : {2u, 4u, 8u}) {
        for (const bool streamed : {false, true}) {
          if (streamed && bytes == kCache) continue;
          std::vector<const void*> from;
          for (size_t i = 0; i < inputs; ++i) from.push_back(place(i));
          void* const to = place(kMostInputs);
          const Pair pair = Compare(
              seconds,
              [&] {
                ReduceWith(kernels, {dtype, BPS_SUM}, from, {}, {&to, 1}, bytes / DtypeSize(dtype),
                           streamed ? Stores::kStreamed : Stores::kCached);
              },
              plain);
          const double more = static_cast<double>(inputs + 1) / 3;
          const double rate = 3e-9 * more * static_cast<double>(bytes) / pair.seconds;
          std::printf("| %s | %zu | %s | %.1f | %.2f |\n", DtypeName(dtype), inputs, streamed ? "streamed" : "cached",
                      rate, more * pair.ratio);
          std::fflush(stdout);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) { return byteps::Main(argc, argv); }
