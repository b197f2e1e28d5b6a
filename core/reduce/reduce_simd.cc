// The vector kernels of reduce_kernels.h, written once with Highway and compiled for each instruction set. Only headers
// of Highway are used: which of the sets this processor has is asked here, so that nothing of it is linked.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/reduce/reduce_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Behind foreach_target.h, which includes this file once per target.
#include <algorithm>
#include <array>
#include <type_traits>

#include "abi/byteps.h"
#include "core/reduce/reduce_kernels.h"
#include "core/reduce/simd_elements-inl.h"
#include "core/reduce/simd_operations-inl.h"
#include "core/reduce/simd_target-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace byteps {
namespace HWY_NAMESPACE {

#if BYTEPS_REDUCE_TARGET

// ---- Loops ----

// Results on their way out.
template <class Codec>
HWY_INLINE void Deliver(const FoldTask& task, typename Codec::Acc result, size_t at) {
  if (task.divisor != 1) result = Codec::Divide(result, task.divisor);
  for (void* output : task.outputs) {
    auto* to = static_cast<typename Codec::Element*>(output) + at;
    if (task.streamed) {
      Codec::Stream(result, to);
    } else {
      Codec::Store(result, to);
    }
  }
}

// One pass over all inputs writes results once, and keeps nothing in memory; of more inputs than a processor reads side
// by side well (FoldTask::at_once) so many at a time are folded in blocks, of which accumulators stay in the
// first-level cache between passes.
constexpr size_t kBlockBytes = 4096;  // of each input
constexpr size_t kFew = ReduceKernels::kFew;
constexpr size_t kMany = ReduceKernels::kMany;

// Few enough for one pass. The constant bound is what lets the compiler unroll loops over inputs: 1.7 times as fast.
HWY_INLINE bool Few(size_t count, size_t at_once) { return count <= kMany && count <= at_once; }

// acc, and then the elements at `at` of `count` inputs.
template <class Codec, class Op>
HWY_INLINE typename Codec::Acc FoldInputs(typename Codec::Acc acc, const void* const* inputs, size_t count, size_t at) {
  using T = typename Codec::Element;
  size_t k = 0;
  for (; k + 1 < count; k += 2) {
    acc = Codec::template ApplyFrom<Op>(acc, static_cast<const T*>(inputs[k]) + at);
    acc = Codec::template ApplyFrom<Op>(acc, static_cast<const T*>(inputs[k + 1]) + at);
  }
  if (k < count) acc = Codec::template ApplyFrom<Op>(acc, static_cast<const T*>(inputs[k]) + at);
  return acc;
}

// The first `count` inputs, at least one, at `at`.
template <class Codec, class Op>
HWY_INLINE typename Codec::Acc FoldFirst(const void* const* inputs, size_t count, size_t at) {
  const auto* first = static_cast<const typename Codec::Element*>(inputs[0]) + at;
  return FoldInputs<Codec, Op>(Codec::Load(first), inputs + 1, count - 1, at);
}

// Of more inputs than kAtOnce, all but the last kAtOnce or fewer: n elements from `at` on -> acc. Returns how many
// inputs these are.
template <size_t kAtOnce, class Codec, class Op>
HWY_NOINLINE size_t Gather(typename Codec::Stored* acc, const void* const* inputs, size_t count, size_t at, size_t n) {
  const size_t step = Codec::Lanes();
  for (size_t i = 0; i < n; i += step) Codec::StoreAcc(FoldFirst<Codec, Op>(inputs, kAtOnce, at + i), acc + i);
  size_t done = kAtOnce;
  for (; count - done > kAtOnce; done += kAtOnce) {
    for (size_t i = 0; i < n; i += step) {
      Codec::StoreAcc(FoldInputs<Codec, Op>(Codec::LoadAcc(acc + i), inputs + done, kAtOnce, at + i), acc + i);
    }
  }
  return done;
}

// n elements of `count` inputs from `at` on; use(result, i) takes those of each step. `acc` holds what is between
// passes.
template <class Codec, class Op, class Use>
HWY_INLINE void FoldBlock(size_t at_once, typename Codec::Stored* acc, const void* const* inputs, size_t count,
                          size_t at, size_t n, Use use) {
  const size_t step = Codec::Lanes();
  if (Few(count, at_once)) {
    for (size_t i = 0; i < n; i += step) use(FoldFirst<Codec, Op>(inputs, count, at + i), i);
  } else {
    const size_t done = at_once == kFew ? Gather<kFew, Codec, Op>(acc, inputs, count, at, n)
                                        : Gather<kMany, Codec, Op>(acc, inputs, count, at, n);
    for (size_t i = 0; i < n; i += step) {
      use(FoldInputs<Codec, Op>(Codec::LoadAcc(acc + i), inputs + done, count - done, at + i), i);
    }
  }
}

// Two levels.
template <class Codec, class Op>
HWY_NOINLINE void FoldGroups(const FoldTask& task, typename Codec::Stored* total, typename Codec::Stored* acc,
                             size_t at, size_t n) {
  using Acc = typename Codec::Acc;
  const void* const* inputs = task.inputs.data();
  for (size_t g = 0; g < task.groups.size(); ++g) {
    FoldBlock<Codec, Op>(task.at_once, acc, inputs, task.groups[g], at, n, [=](Acc of_group, size_t i) HWY_ATTR {
      Acc sum = Codec::Round(of_group);
      if (g != 0) sum = Codec::template Apply<Op>(Codec::LoadAcc(total + i), sum);
      Codec::StoreAcc(sum, total + i);
    });
    inputs += task.groups[g];
  }
  for (size_t i = 0; i < n; i += Codec::Lanes()) Deliver<Codec>(task, Codec::LoadAcc(total + i), at + i);
}

// One level.
template <class Codec, class Op>
HWY_INLINE size_t FoldAll(const FoldTask& task, size_t end) {
  using T = typename Codec::Element;
  constexpr size_t kBlock = kBlockBytes / sizeof(T);
  const size_t step = Codec::Lanes();
  const void* const* inputs = task.inputs.data();
  const size_t count = task.inputs.size();
  size_t at = task.begin;
  if (!Few(count, task.at_once)) {
    alignas(64) typename Codec::Stored acc[kBlock];
    for (; at < end; at += std::min(kBlock, end - at)) {
      FoldBlock<Codec, Op>(task.at_once, acc, inputs, count, at, std::min(kBlock, end - at),
                           [&](typename Codec::Acc result, size_t i)
                               HWY_ATTR { Deliver<Codec>(task, result, at + i); });
    }
  } else if (task.outputs.size() == 1 && task.divisor == 1 && !task.streamed) {  // the most frequent, without questions
    T* out = static_cast<T*>(task.outputs[0]);
    if (count == 2) {
      const T* one = static_cast<const T*>(inputs[0]);
      const T* two = static_cast<const T*>(inputs[1]);
      for (; at < end; at += step) {
        Codec::Store(Codec::template ApplyFrom<Op>(Codec::Load(one + at), two + at), out + at);
      }
    } else {
      for (; at < end; at += step) Codec::Store(FoldFirst<Codec, Op>(inputs, count, at), out + at);
    }
  } else {
    for (; at < end; at += step) Deliver<Codec>(task, FoldFirst<Codec, Op>(inputs, count, at), at);
  }
  return at;
}

template <class Codec, class Op>
size_t Fold(const FoldTask& task) {
  constexpr size_t kBlock = kBlockBytes / sizeof(typename Codec::Element);
  const size_t step = Codec::Lanes();
  size_t at = task.begin;
  const size_t end = at + (task.end - at) / step * step;
  if (!task.groups.empty()) {
    alignas(64) typename Codec::Stored total[kBlock];
    alignas(64) typename Codec::Stored acc[kBlock];
    for (; at < end; at += std::min(kBlock, end - at)) {
      FoldGroups<Codec, Op>(task, total, acc, at, std::min(kBlock, end - at));
    }
  } else if (Op::kQuiets && task.inputs.size() > 1) {
    at = FoldAll<typename Codec::Quieted, Op>(task, end);
  } else {
    at = FoldAll<Codec, Op>(task, end);
  }
  if (task.streamed) hwy::FlushStream();
  return at;
}

template <class Codec>
size_t FoldBy(const FoldTask& task) {
  switch (task.op) {
    case BPS_MIN:
      return Fold<Codec, Min>(task);
    case BPS_MAX:
      return Fold<Codec, Max>(task);
    case BPS_PRODUCT:
      return Fold<Codec, Product>(task);
    default:
      return Fold<Codec, Sum>(task);
  }
}

// Bits know neither type nor size: reduce.cc makes bytes of them.
size_t FoldBytes(const FoldTask& task) {
  switch (task.op) {
    case BPS_MIN:
      return Fold<Plain<uint8_t>, Min>(task);
    case BPS_MAX:
      return Fold<Plain<uint8_t>, Max>(task);
    case BPS_BIT_AND:
      return Fold<Plain<uint8_t>, BitAnd>(task);
    case BPS_BIT_OR:
      return Fold<Plain<uint8_t>, BitOr>(task);
    case BPS_BIT_XOR:
      return Fold<Plain<uint8_t>, BitXor>(task);
    default:  // sums and products of the lowest eight bits do not know of signs
      return FoldBy<Plain<int8_t>>(task);
  }
}

size_t FoldAny(const FoldTask& task) {
  switch (task.dtype) {
    case BPS_INT8:
      return FoldBy<Plain<int8_t>>(task);
    case BPS_UINT8:
      return FoldBytes(task);
    case BPS_INT16:
      return FoldBy<Plain<int16_t>>(task);
    case BPS_INT32:
      return FoldBy<Plain<int32_t>>(task);
    case BPS_INT64:
      return FoldBy<Plain<int64_t>>(task);
    case BPS_FLOAT16:
      return FoldBy<Float16>(task);
    case BPS_FLOAT32:
      return FoldBy<Plain<float>>(task);
    case BPS_FLOAT64:
      return FoldBy<Plain<double>>(task);
    case BPS_BFLOAT16:
      return FoldBy<BFloat16>(task);
    default:
      return task.begin;
  }
}

template <class Codec, class Op>
size_t AddWide(const WideTask& task) {
  const FloatTag tag;
  const size_t lanes = hn::Lanes(tag);
  const uint16_t* narrow = static_cast<const uint16_t*>(task.narrow_in);
  size_t at = task.begin;
  for (; at + lanes <= task.end; at += lanes) {
    hn::StoreU(Codec::template Apply<Op>(hn::LoadU(tag, task.wide + at), Codec::Load(narrow + at)), tag,
               task.wide + at);
  }
  return at;
}

template <class Codec>
size_t WideBy(const WideTask& task) {
  const FloatTag tag;
  const size_t lanes = hn::Lanes(tag);
  size_t at = task.begin;
  switch (task.step) {
    case WideTask::Step::kWiden: {
      const uint16_t* narrow = static_cast<const uint16_t*>(task.narrow_in);
      for (; at + lanes <= task.end; at += lanes) hn::StoreU(Codec::Load(narrow + at), tag, task.wide + at);
      break;
    }
    case WideTask::Step::kAdd:
      switch (task.op) {
        case BPS_MIN:
          return AddWide<Codec, Min>(task);
        case BPS_MAX:
          return AddWide<Codec, Max>(task);
        case BPS_PRODUCT:
          return AddWide<Codec, Product>(task);
        default:
          return AddWide<Codec, Sum>(task);
      }
    case WideTask::Step::kRoundLevel:
      for (; at + lanes <= task.end; at += lanes) {
        hn::StoreU(Codec::Round(hn::LoadU(tag, task.wide + at)), tag, task.wide + at);
      }
      break;
    case WideTask::Step::kRound: {
      uint16_t* narrow = static_cast<uint16_t*>(task.narrow_out);
      for (; at + lanes <= task.end; at += lanes) {
        FloatVec acc = hn::LoadU(tag, task.wide + at);
        if (task.divisor != 1) acc = Codec::Divide(acc, task.divisor);
        Codec::Store(acc, narrow + at);
      }
      break;
    }
  }
  return at;
}

size_t WideAny(const WideTask& task) {
  return task.dtype == BPS_FLOAT16 ? WideBy<Float16InOrder>(task) : WideBy<BFloat16InOrder>(task);
}

ReduceKernels Kernels() { return {hwy::TargetName(HWY_TARGET), ReduceKernels::kMany, FoldAny, WideAny}; }

#else  // a target that is left to the scalar kernels

ReduceKernels Kernels() { return {nullptr, 0, nullptr, nullptr}; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace byteps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace byteps {
namespace {

struct Available {
  std::array<ReduceKernels, 4> kernels;
  size_t count = 0;
  void Add(const ReduceKernels& found) {
    if (found.fold != nullptr) kernels[count++] = found;
  }
};

// Asks for everything that a target's code may be compiled with.
Available FindAvailable() {
  Available available;
#if HWY_ARCH_X86
  __builtin_cpu_init();
  [[maybe_unused]] const bool sse4 = __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
                                     __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
                                     __builtin_cpu_supports("aes");
  [[maybe_unused]] const bool avx2 = sse4 && __builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2") &&
                                     __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                                     __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  [[maybe_unused]] const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                                     __builtin_cpu_supports("avx512cd");
#if HWY_TARGETS & HWY_AVX3
  if (avx3) {
    ReduceKernels kernels = N_AVX3::Kernels();
    if (!__builtin_cpu_is("amd")) kernels.at_once = ReduceKernels::kFew;
    available.Add(kernels);
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  if (avx2) available.Add(N_AVX2::Kernels());
#endif
#else
  // One that needs no asking: NEON on 64-bit ARM.
  available.Add(HWY_STATIC_DISPATCH(Kernels)());
#endif
  return available;
}

const Available& Found() {
  static const Available available = FindAvailable();
  return available;
}

}  // namespace

std::span<const ReduceKernels> VectorKernels() { return std::span(Found().kernels).first(Found().count); }

const ReduceKernels* BestKernels() { return Found().count == 0 ? nullptr : &Found().kernels[0]; }

}  // namespace byteps
#endif  // HWY_ONCE
