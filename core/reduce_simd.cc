// The vector kernels of reduce_kernels.h, written once with Highway and compiled for each instruction set. Only headers
// of Highway are used: which of the sets this processor has is asked here, so that nothing of it is linked.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/reduce_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Behind foreach_target.h, which includes this file once per target.
#include <algorithm>
#include <array>
#include <type_traits>

#include "abi/byteps.h"
#include "core/reduce_kernels.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

// The targets that are worth their bytes: each adds some hundred KiB. Others that Highway has would run the same
// instructions (AVX-512's later extensions), or are of processors that nobody trains on (SSE4).
#undef BYTEPS_REDUCE_TARGET
#if HWY_ARCH_X86
#define BYTEPS_REDUCE_TARGET (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
#else
#define BYTEPS_REDUCE_TARGET (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON)
#endif

HWY_BEFORE_NAMESPACE();
namespace byteps {
namespace HWY_NAMESPACE {

#if BYTEPS_REDUCE_TARGET

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using BitsVec = hn::Vec<BitsTag>;
using SignedTag = hn::RebindToSigned<FloatTag>;
using HalvesTag = hn::Rebind<uint16_t, FloatTag>;  // as many 16-bit elements as a vector of floats has
using HalvesVec = hn::Vec<HalvesTag>;

HWY_INLINE BitsVec Bits(FloatVec value) { return hn::BitCast(BitsTag(), value); }
HWY_INLINE FloatVec Float(BitsVec bits) { return hn::BitCast(FloatTag(), bits); }
HWY_INLINE BitsVec Constant(uint32_t bits) { return hn::Set(BitsTag(), bits); }

// ---- Operations on accumulators ----

struct Sum {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D d, V a, V b) {
    using T = hn::TFromD<D>;
    if constexpr (sizeof(T) == 1) {
      // In 16 bits, of which the lower eight are kept: no carry comes from above.
      const hn::Repartition<uint16_t, D> wide;
      const auto a16 = hn::BitCast(wide, a);
      const auto b16 = hn::BitCast(wide, b);
      const auto low = hn::And(hn::Mul(a16, b16), hn::Set(wide, 0x00ff));
      const auto high = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
      return hn::BitCast(d, hn::Or(low, high));
    } else if constexpr (std::is_same_v<T, int64_t>) {
      // low x low + ((low x high + high x low) << 32)
      const hn::Repartition<uint32_t, D> half;
      const hn::Repartition<uint64_t, D> whole;
      const auto a32 = hn::BitCast(half, a);
      const auto b32 = hn::BitCast(half, b);
      const auto a_high = hn::BitCast(half, hn::ShiftRight<32>(hn::BitCast(whole, a)));
      const auto b_high = hn::BitCast(half, hn::ShiftRight<32>(hn::BitCast(whole, b)));
      const auto crossed = hn::Add(hn::MulEven(a32, b_high), hn::MulEven(a_high, b32));
      return hn::BitCast(d, hn::Add(hn::MulEven(a32, b32), hn::ShiftLeft<32>(crossed)));
    } else {
      (void)d;
      return hn::Mul(a, b);
    }
  }
};

// The earlier of equals, and of NaNs; a NaN before a number.
struct Min {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    if constexpr (std::is_integral_v<hn::TFromD<D>>) {
      return hn::Min(a, b);
    } else {
      return hn::IfThenElse(hn::Or(hn::Le(a, b), hn::IsNaN(a)), a, b);
    }
  }
};
struct Max {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    if constexpr (std::is_integral_v<hn::TFromD<D>>) {
      return hn::Max(a, b);
    } else {
      return hn::IfThenElse(hn::Or(hn::Ge(a, b), hn::IsNaN(a)), a, b);
    }
  }
};

// ---- Elements in memory, and the accumulators they become ----

// Folded in their own type.
template <typename T>
struct Native {
  using Element = T;
  using Stored = T;  // of accumulators in memory
  using Tag = hn::ScalableTag<T>;
  using Acc = hn::Vec<Tag>;
  static constexpr bool kRounds = false;
  static HWY_INLINE size_t Lanes() { return hn::Lanes(Tag()); }
  static HWY_INLINE Acc Load(const T* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE void Store(Acc acc, T* to) { hn::StoreU(acc, Tag(), to); }
  static HWY_INLINE void StreamTwo(Acc a, Acc b, T* to) {
    hn::Stream(a, Tag(), to);
    hn::Stream(b, Tag(), to + Lanes());
  }
  static HWY_INLINE Acc LoadAcc(const T* from) { return hn::Load(Tag(), from); }
  static HWY_INLINE void StoreAcc(Acc acc, T* to) { hn::Store(acc, Tag(), to); }
  static HWY_INLINE Acc Round(Acc acc) { return acc; }
  template <class Op>
  static HWY_INLINE Acc Apply(Acc a, Acc b) {
    return Op::Apply(Tag(), a, b);
  }
  static HWY_INLINE Acc Divide(Acc acc, uint32_t divisor) {
    if constexpr (std::is_floating_point_v<T>) {
      return hn::Div(acc, hn::Set(Tag(), static_cast<T>(divisor)));
    } else {
      (void)divisor;  // integers are not divided here
      return acc;
    }
  }
};

// float32 bits whose upper half is the bfloat16 nearest to `value`, as ToBFloat16() rounds.
HWY_INLINE BitsVec RoundedToUpperHalf(FloatVec value) {
  const BitsVec bits = Bits(value);
  const BitsVec odd = hn::And(hn::ShiftRight<16>(bits), Constant(1));
  const BitsVec rounded = hn::Add(hn::Add(bits, Constant(0x7fff)), odd);
  const BitsVec quiet = hn::Or(bits, Constant(0x00400000));
  return hn::IfThenElse(hn::RebindMask(BitsTag(), hn::IsNaN(value)), quiet, rounded);
}

// What 16-bit floats have in common: accumulators are vectors of float32, in the order of the elements.
template <class Conversion>
struct InOrder {
  using Element = uint16_t;
  using Stored = float;
  using Acc = FloatVec;
  static constexpr bool kRounds = true;
  static HWY_INLINE size_t Lanes() { return hn::Lanes(FloatTag()); }
  static HWY_INLINE Acc Load(const uint16_t* from) { return Conversion::Widen(hn::LoadU(HalvesTag(), from)); }
  static HWY_INLINE void Store(Acc acc, uint16_t* to) { hn::StoreU(Conversion::Narrow(acc), HalvesTag(), to); }
  static HWY_INLINE void StreamTwo(Acc a, Acc b, uint16_t* to) {
    const hn::ScalableTag<uint16_t> whole;  // only whole vectors can be streamed
    hn::Stream(hn::Combine(whole, Conversion::Narrow(b), Conversion::Narrow(a)), whole, to);
  }
  static HWY_INLINE Acc LoadAcc(const float* from) { return hn::Load(FloatTag(), from); }
  static HWY_INLINE void StoreAcc(Acc acc, float* to) { hn::Store(acc, FloatTag(), to); }
  static HWY_INLINE Acc Round(Acc acc) { return Conversion::Widen(Conversion::Narrow(acc)); }
  template <class Op>
  static HWY_INLINE Acc Apply(Acc a, Acc b) {
    return Op::Apply(FloatTag(), a, b);
  }
  static HWY_INLINE Acc Divide(Acc acc, uint32_t divisor) {
    return hn::Div(acc, hn::Set(FloatTag(), static_cast<float>(divisor)));
  }
};

struct BFloat16Conversion {
  static HWY_INLINE FloatVec Widen(HalvesVec bits) { return Float(hn::ShiftLeft<16>(hn::PromoteTo(BitsTag(), bits))); }
  static HWY_INLINE HalvesVec Narrow(FloatVec value) {
    const BitsVec bits = hn::ShiftRight<16>(RoundedToUpperHalf(value));
    return hn::DemoteTo(HalvesTag(), hn::BitCast(SignedTag(), bits));
  }
};

// All targets have instructions for it, which agree with core/dtype.h in every bit.
struct Float16Conversion {
  using Tag = hn::Rebind<hwy::float16_t, FloatTag>;
  static HWY_INLINE FloatVec Widen(HalvesVec bits) { return hn::PromoteTo(FloatTag(), hn::BitCast(Tag(), bits)); }
  static HWY_INLINE HalvesVec Narrow(FloatVec value) { return hn::BitCast(HalvesTag(), hn::DemoteTo(Tag(), value)); }
};

using Float16InOrder = InOrder<Float16Conversion>;
using BFloat16InOrder = InOrder<BFloat16Conversion>;

// bfloat16 in pairs: a 32-bit lane holds two elements, and the accumulator is a vector for each; no element changes its
// lane.
struct BFloat16Pairs {
  using Element = uint16_t;
  using Stored = float;
  using Tag = hn::ScalableTag<uint16_t>;
  struct Acc {
    FloatVec lower;
    FloatVec upper;
  };
  static constexpr bool kRounds = true;
  static HWY_INLINE size_t Lanes() { return hn::Lanes(Tag()); }
  static HWY_INLINE Acc Load(const uint16_t* from) {
    const BitsVec bits = hn::BitCast(BitsTag(), hn::LoadU(Tag(), from));
    return {Float(hn::ShiftLeft<16>(bits)), Float(hn::And(bits, Constant(0xffff0000)))};
  }
  static HWY_INLINE hn::Vec<Tag> Narrow(Acc acc) {
    return hn::OddEven(hn::BitCast(Tag(), RoundedToUpperHalf(acc.upper)),
                       hn::BitCast(Tag(), hn::ShiftRight<16>(RoundedToUpperHalf(acc.lower))));
  }
  static HWY_INLINE void Store(Acc acc, uint16_t* to) { hn::StoreU(Narrow(acc), Tag(), to); }
  static HWY_INLINE void StreamTwo(Acc a, Acc b, uint16_t* to) {
    hn::Stream(Narrow(a), Tag(), to);
    hn::Stream(Narrow(b), Tag(), to + Lanes());
  }
  static HWY_INLINE Acc LoadAcc(const float* from) {
    return {hn::Load(FloatTag(), from), hn::Load(FloatTag(), from + hn::Lanes(FloatTag()))};
  }
  static HWY_INLINE void StoreAcc(Acc acc, float* to) {
    hn::Store(acc.lower, FloatTag(), to);
    hn::Store(acc.upper, FloatTag(), to + hn::Lanes(FloatTag()));
  }
  static HWY_INLINE Acc Round(Acc acc) {
    const BitsVec kept = Constant(0xffff0000);
    return {Float(hn::And(RoundedToUpperHalf(acc.lower), kept)), Float(hn::And(RoundedToUpperHalf(acc.upper), kept))};
  }
  template <class Op>
  static HWY_INLINE Acc Apply(Acc a, Acc b) {
    return {Op::Apply(FloatTag(), a.lower, b.lower), Op::Apply(FloatTag(), a.upper, b.upper)};
  }
  static HWY_INLINE Acc Divide(Acc acc, uint32_t divisor) {
    const FloatVec by = hn::Set(FloatTag(), static_cast<float>(divisor));
    return {hn::Div(acc.lower, by), hn::Div(acc.upper, by)};
  }
};

// ---- Loops ----

// Four accumulators: as many as hide the latency of an addition, and no more than the registers hold twice.
template <class Codec>
struct Four {
  typename Codec::Acc a, b, c, d;

  using Element = typename Codec::Element;
  static HWY_INLINE Four Load(const Element* from) {
    const size_t lanes = Codec::Lanes();
    return {Codec::Load(from), Codec::Load(from + lanes), Codec::Load(from + 2 * lanes), Codec::Load(from + 3 * lanes)};
  }
  template <class Op>
  HWY_INLINE Four Apply(const Four& other) const {
    return {Codec::template Apply<Op>(a, other.a), Codec::template Apply<Op>(b, other.b),
            Codec::template Apply<Op>(c, other.c), Codec::template Apply<Op>(d, other.d)};
  }
  HWY_INLINE Four Round() const { return {Codec::Round(a), Codec::Round(b), Codec::Round(c), Codec::Round(d)}; }
  HWY_INLINE Four Divide(uint32_t by) const {
    return {Codec::Divide(a, by), Codec::Divide(b, by), Codec::Divide(c, by), Codec::Divide(d, by)};
  }
  static HWY_INLINE Four LoadAcc(const typename Codec::Stored* from) {
    const size_t lanes = Codec::Lanes();
    return {Codec::LoadAcc(from), Codec::LoadAcc(from + lanes), Codec::LoadAcc(from + 2 * lanes),
            Codec::LoadAcc(from + 3 * lanes)};
  }
  HWY_INLINE void StoreAcc(typename Codec::Stored* to) const {
    const size_t lanes = Codec::Lanes();
    Codec::StoreAcc(a, to);
    Codec::StoreAcc(b, to + lanes);
    Codec::StoreAcc(c, to + 2 * lanes);
    Codec::StoreAcc(d, to + 3 * lanes);
  }
  HWY_INLINE void Store(Element* to) const {
    const size_t lanes = Codec::Lanes();
    Codec::Store(a, to);
    Codec::Store(b, to + lanes);
    Codec::Store(c, to + 2 * lanes);
    Codec::Store(d, to + 3 * lanes);
  }
  HWY_INLINE void Stream(Element* to) const {
    Codec::StreamTwo(a, b, to);
    Codec::StreamTwo(c, d, to + 2 * Codec::Lanes());
  }
};

// Results on their way out.
template <class Codec>
HWY_INLINE void Deliver(const FoldTask& task, Four<Codec> result, size_t at) {
  if (task.divisor != 1) result = result.Divide(task.divisor);
  for (void* output : task.outputs) {
    typename Codec::Element* to = static_cast<typename Codec::Element*>(output) + at;
    if (task.streamed) {
      result.Stream(to);
    } else {
      result.Store(to);
    }
  }
}

// Bytes of each input that are folded at a time, in the first-level cache. Two inputs at once: the processor reads ahead
// along few streams better than along many.
constexpr size_t kBlockBytes = 4096;

// n elements of `count` inputs from `at` on -> acc.
template <class Codec, class Op>
HWY_NOINLINE void Gather(typename Codec::Stored* acc, const void* const* inputs, size_t count, size_t at, size_t n) {
  using T = typename Codec::Element;
  using F = Four<Codec>;
  const size_t step = 4 * Codec::Lanes();
  const T* one = static_cast<const T*>(inputs[0]) + at;
  size_t next = 1;
  if (count == 1) {
    for (size_t i = 0; i < n; i += step) F::Load(one + i).StoreAcc(acc + i);
  } else {
    const T* two = static_cast<const T*>(inputs[1]) + at;
    for (size_t i = 0; i < n; i += step) {
      F::Load(one + i).template Apply<Op>(F::Load(two + i)).StoreAcc(acc + i);
    }
    next = 2;
  }
  for (; next + 1 < count; next += 2) {
    one = static_cast<const T*>(inputs[next]) + at;
    const T* two = static_cast<const T*>(inputs[next + 1]) + at;
    for (size_t i = 0; i < n; i += step) {
      F::LoadAcc(acc + i).template Apply<Op>(F::Load(one + i)).template Apply<Op>(F::Load(two + i)).StoreAcc(acc + i);
    }
  }
  if (next < count) {
    one = static_cast<const T*>(inputs[next]) + at;
    for (size_t i = 0; i < n; i += step) {
      F::LoadAcc(acc + i).template Apply<Op>(F::Load(one + i)).StoreAcc(acc + i);
    }
  }
}

// One level of three inputs or more.
template <class Codec, class Op>
HWY_INLINE void FoldBlock(const FoldTask& task, typename Codec::Stored* acc, size_t at, size_t n) {
  using T = typename Codec::Element;
  using F = Four<Codec>;
  const size_t step = 4 * Codec::Lanes();
  const size_t count = task.inputs.size();
  const bool odd = count % 2 != 0;
  Gather<Codec, Op>(acc, task.inputs.data(), odd ? count - 1 : count - 2, at, n);
  const T* last = static_cast<const T*>(task.inputs[count - 1]) + at;
  if (odd) {
    for (size_t i = 0; i < n; i += step) {
      Deliver<Codec>(task, F::LoadAcc(acc + i).template Apply<Op>(F::Load(last + i)), at + i);
    }
  } else {
    const T* before = static_cast<const T*>(task.inputs[count - 2]) + at;
    for (size_t i = 0; i < n; i += step) {
      Deliver<Codec>(task,
                     F::LoadAcc(acc + i).template Apply<Op>(F::Load(before + i)).template Apply<Op>(F::Load(last + i)),
                     at + i);
    }
  }
}

// Two levels.
template <class Codec, class Op>
HWY_NOINLINE void FoldGroups(const FoldTask& task, typename Codec::Stored* total, typename Codec::Stored* acc,
                             size_t at, size_t n) {
  using F = Four<Codec>;
  const size_t step = 4 * Codec::Lanes();
  const void* const* inputs = task.inputs.data();
  for (size_t g = 0; g < task.groups.size(); ++g) {
    typename Codec::Stored* of_group = g == 0 ? total : acc;
    Gather<Codec, Op>(of_group, inputs, task.groups[g], at, n);
    inputs += task.groups[g];
    if (g == 0) {
      if (!Codec::kRounds) continue;
      for (size_t i = 0; i < n; i += step) F::LoadAcc(total + i).Round().StoreAcc(total + i);
    } else {
      for (size_t i = 0; i < n; i += step) {
        F::LoadAcc(total + i).template Apply<Op>(F::LoadAcc(acc + i).Round()).StoreAcc(total + i);
      }
    }
  }
  for (size_t i = 0; i < n; i += step) Deliver<Codec>(task, F::LoadAcc(total + i), at + i);
}

template <class Codec, class Op>
size_t Fold(const FoldTask& task) {
  using T = typename Codec::Element;
  using F = Four<Codec>;
  constexpr size_t kBlock = kBlockBytes / sizeof(T);
  const size_t step = 4 * Codec::Lanes();
  size_t at = task.begin;
  const size_t end = at + (task.end - at) / step * step;
  const T* one = static_cast<const T*>(task.inputs[0]);
  if (!task.groups.empty() || task.inputs.size() > 2) {
    alignas(64) typename Codec::Stored total[kBlock];
    alignas(64) typename Codec::Stored acc[kBlock];
    for (; at < end; at += std::min(kBlock, end - at)) {
      if (task.groups.empty()) {
        FoldBlock<Codec, Op>(task, total, at, std::min(kBlock, end - at));
      } else {
        FoldGroups<Codec, Op>(task, total, acc, at, std::min(kBlock, end - at));
      }
    }
  } else if (task.inputs.size() == 1) {
    for (; at < end; at += step) Deliver<Codec>(task, F::Load(one + at), at);
  } else {
    const T* two = static_cast<const T*>(task.inputs[1]);
    if (task.outputs.size() == 1 && task.divisor == 1 && !task.streamed) {  // the most frequent, without questions
      T* out = static_cast<T*>(task.outputs[0]);
      for (; at < end; at += step) F::Load(one + at).template Apply<Op>(F::Load(two + at)).Store(out + at);
    } else {
      for (; at < end; at += step) Deliver<Codec>(task, F::Load(one + at).template Apply<Op>(F::Load(two + at)), at);
    }
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

size_t FoldAny(const FoldTask& task) {
  switch (task.dtype) {
    case BPS_INT8:
      return FoldBy<Native<int8_t>>(task);
    case BPS_UINT8:
      // Sums and products of the lowest eight bits do not know of signs.
      return task.op == BPS_MIN   ? Fold<Native<uint8_t>, Min>(task)
             : task.op == BPS_MAX ? Fold<Native<uint8_t>, Max>(task)
                                  : FoldBy<Native<int8_t>>(task);
    case BPS_INT32:
      return FoldBy<Native<int32_t>>(task);
    case BPS_INT64:
      return FoldBy<Native<int64_t>>(task);
    case BPS_FLOAT16:
      return FoldBy<Float16InOrder>(task);
    case BPS_FLOAT32:
      return FoldBy<Native<float>>(task);
    case BPS_FLOAT64:
      return FoldBy<Native<double>>(task);
    case BPS_BFLOAT16:
      return FoldBy<BFloat16Pairs>(task);
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
    hn::StoreU(Op::Apply(tag, hn::LoadU(tag, task.wide + at), Codec::Load(narrow + at)), tag, task.wide + at);
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

ReduceKernels Kernels() { return {hwy::TargetName(HWY_TARGET), FoldAny, WideAny}; }

#else  // a target that is left to the scalar kernels

ReduceKernels Kernels() { return {nullptr, nullptr, nullptr}; }

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
  if (avx3) available.Add(N_AVX3::Kernels());
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
