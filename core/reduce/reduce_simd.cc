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

// Apply() is of elements folded in their own type, ApplyWide() of 16-bit floats in float32.
struct Sum {
  static constexpr bool kQuiets = true;  // no signalling NaN comes out
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Add(a, b);
  }
  // a x 1 + b is a + b in every bit. Some processors (Zen) multiply and add where nothing else of a 16-bit fold is done,
  // and add where the conversions and shifts are, which are the bound.
  static HWY_INLINE FloatVec ApplyWide(FloatVec a, FloatVec b) { return hn::MulAdd(a, hn::Set(FloatTag(), 1.0f), b); }
};

struct Product {
  static constexpr bool kQuiets = true;
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
  static HWY_INLINE FloatVec ApplyWide(FloatVec a, FloatVec b) { return Apply(FloatTag(), a, b); }
};

// The earlier of equals, and of NaNs; a NaN before a number.
struct Min {
  static constexpr bool kQuiets = false;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    if constexpr (std::is_integral_v<hn::TFromD<D>>) {
      return hn::Min(a, b);
    } else {
      return hn::IfThenElse(hn::Or(hn::Le(a, b), hn::IsNaN(a)), a, b);
    }
  }
  static HWY_INLINE FloatVec ApplyWide(FloatVec a, FloatVec b) { return Apply(FloatTag(), a, b); }
};
struct Max {
  static constexpr bool kQuiets = false;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    if constexpr (std::is_integral_v<hn::TFromD<D>>) {
      return hn::Max(a, b);
    } else {
      return hn::IfThenElse(hn::Or(hn::Ge(a, b), hn::IsNaN(a)), a, b);
    }
  }
  static HWY_INLINE FloatVec ApplyWide(FloatVec a, FloatVec b) { return Apply(FloatTag(), a, b); }
};

struct BitAnd {
  static constexpr bool kQuiets = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::And(a, b);
  }
};
struct BitOr {
  static constexpr bool kQuiets = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Or(a, b);
  }
};
struct BitXor {
  static constexpr bool kQuiets = true;
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Xor(a, b);
  }
};

// ---- Elements in memory, and the accumulators they become ----

// Folded in their own type.
template <typename T>
struct Native {
  using Quieted = Native;
  using Element = T;
  using Stored = T;  // of accumulators in memory
  using Tag = hn::ScalableTag<T>;
  using Acc = hn::Vec<Tag>;
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
  template <class Op>
  static HWY_INLINE Acc ApplyFrom(Acc acc, const T* from) {
    return Apply<Op>(acc, Load(from));
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

// float32 bits whose upper half is the bfloat16 nearest to `value`, as ToBFloat16() rounds; of a NaN only where its lower
// half is zero and it is quiet.
HWY_INLINE BitsVec NumberToUpperHalf(FloatVec value) {
  const BitsVec bits = Bits(value);
  const BitsVec odd = hn::And(hn::ShiftRight<16>(bits), Constant(1));
  return hn::Add(hn::Add(bits, Constant(0x7fff)), odd);
}

// The same, of every NaN.
HWY_INLINE BitsVec RoundedToUpperHalf(FloatVec value) {
  const BitsVec bits = Bits(value);
  const BitsVec rounded = NumberToUpperHalf(value);
  const BitsVec quiet = hn::Or(bits, Constant(0x00400000));
  return hn::IfThenElse(hn::RebindMask(BitsTag(), hn::IsNaN(value)), quiet, rounded);
}

// What 16-bit floats have in common: accumulators are vectors of float32, in the order of the elements.
template <class Conversion>
struct InOrder {
  using Quieted = InOrder;
  using Element = uint16_t;
  using Stored = float;
  using Acc = FloatVec;
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
    return Op::ApplyWide(a, b);
  }
  template <class Op>
  static HWY_INLINE Acc ApplyFrom(Acc acc, const uint16_t* from) {
    return Apply<Op>(acc, Load(from));
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

// All targets have instructions for it, which agree with core/reduce/dtype.h in every bit.
struct Float16Conversion {
  using Tag = hn::Rebind<hwy::float16_t, FloatTag>;
  static HWY_INLINE FloatVec Widen(HalvesVec bits) { return hn::PromoteTo(FloatTag(), hn::BitCast(Tag(), bits)); }
  static HWY_INLINE HalvesVec Narrow(FloatVec value) { return hn::BitCast(HalvesTag(), hn::DemoteTo(Tag(), value)); }
};

using Float16InOrder = InOrder<Float16Conversion>;
using BFloat16InOrder = InOrder<BFloat16Conversion>;

// bfloat16 in pairs: a 32-bit lane holds two elements, and the accumulator is a vector for each; no element changes its
// lane. `kQuiet`: accumulators are results of arithmetic on widened elements. A NaN of these is quiet and has nothing in
// its lower half, which rounds it to itself without asking; asking is a third of the rounding.
template <bool kQuiet>
struct BFloat16Pairs {
  using Quieted = BFloat16Pairs<true>;
  using Element = uint16_t;
  using Stored = float;
  using Tag = hn::ScalableTag<uint16_t>;
  struct Acc {
    FloatVec lower;
    FloatVec upper;
  };
  static HWY_INLINE size_t Lanes() { return hn::Lanes(Tag()); }
  static HWY_INLINE Acc Load(const uint16_t* from) {
    const BitsVec bits = hn::BitCast(BitsTag(), hn::LoadU(Tag(), from));
    return {Float(hn::ShiftLeft<16>(bits)), Float(hn::And(bits, Constant(0xffff0000)))};
  }
  static HWY_INLINE BitsVec ToUpperHalf(FloatVec value) {
    return kQuiet ? NumberToUpperHalf(value) : RoundedToUpperHalf(value);
  }
  static HWY_INLINE hn::Vec<Tag> Narrow(Acc acc) {
    return hn::OddEven(hn::BitCast(Tag(), ToUpperHalf(acc.upper)),
                       hn::BitCast(Tag(), hn::ShiftRight<16>(ToUpperHalf(acc.lower))));
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
    return {Op::ApplyWide(a.lower, b.lower), Op::ApplyWide(a.upper, b.upper)};
  }
  template <class Op>
  static HWY_INLINE Acc ApplyFrom(Acc acc, const uint16_t* from) {
    return Apply<Op>(acc, Load(from));
  }
  static HWY_INLINE Acc Divide(Acc acc, uint32_t divisor) {
    const FloatVec by = hn::Set(FloatTag(), static_cast<float>(divisor));
    return {hn::Div(acc.lower, by), hn::Div(acc.upper, by)};
  }
};

// Two accumulators side by side, as one. Of Twice<Twice<Codec>>, four.
template <class Codec>
struct Twice {
  using Quieted = Twice<typename Codec::Quieted>;
  using Element = typename Codec::Element;
  using Stored = typename Codec::Stored;
  struct Acc {
    typename Codec::Acc a, b;
  };
  static HWY_INLINE size_t Lanes() { return 2 * Codec::Lanes(); }
  static HWY_INLINE Acc Load(const Element* from) { return {Codec::Load(from), Codec::Load(from + Codec::Lanes())}; }
  static HWY_INLINE void Store(Acc acc, Element* to) {
    Codec::Store(acc.a, to);
    Codec::Store(acc.b, to + Codec::Lanes());
  }
  static HWY_INLINE void Stream(Acc acc, Element* to) { Codec::StreamTwo(acc.a, acc.b, to); }
  static HWY_INLINE void StreamTwo(Acc x, Acc y, Element* to) {
    Stream(x, to);
    Stream(y, to + Lanes());
  }
  static HWY_INLINE Acc LoadAcc(const Stored* from) {
    return {Codec::LoadAcc(from), Codec::LoadAcc(from + Codec::Lanes())};
  }
  static HWY_INLINE void StoreAcc(Acc acc, Stored* to) {
    Codec::StoreAcc(acc.a, to);
    Codec::StoreAcc(acc.b, to + Codec::Lanes());
  }
  static HWY_INLINE Acc Round(Acc acc) { return {Codec::Round(acc.a), Codec::Round(acc.b)}; }
  template <class Op>
  static HWY_INLINE Acc Apply(Acc x, Acc y) {
    return {Codec::template Apply<Op>(x.a, y.a), Codec::template Apply<Op>(x.b, y.b)};
  }
  // With elements in memory: each is used where it is loaded, so that registers hold accumulators.
  template <class Op>
  static HWY_INLINE Acc ApplyFrom(Acc acc, const Element* from) {
    return {Codec::template ApplyFrom<Op>(acc.a, from), Codec::template ApplyFrom<Op>(acc.b, from + Codec::Lanes())};
  }
  static HWY_INLINE Acc Divide(Acc acc, uint32_t divisor) {
    return {Codec::Divide(acc.a, divisor), Codec::Divide(acc.b, divisor)};
  }
};

// What a step of a loop folds: of each input a line of the cache or two, read at once. More of one input at a time, or
// less, is slower from memory; 16-bit floats need four accumulators, to hide what converting takes.
template <typename T>
using Plain = Twice<Native<T>>;
using BFloat16 = Twice<Twice<BFloat16Pairs<false>>>;
using Float16 = Twice<Twice<Float16InOrder>>;

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

// One pass over all inputs writes results once, and keeps nothing in memory; of more inputs than a processor reads side by
// side well (FoldTask::at_once) so many at a time are folded in blocks, of which accumulators stay in the first-level
// cache between passes.
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

// n elements of `count` inputs from `at` on; use(result, i) takes those of each step. `acc` holds what is between passes.
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
