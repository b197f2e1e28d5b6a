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

// Which targets are worth their bytes. Others that Highway has (such as those between SSE4 and AVX2, or AVX-512's later
// extensions) would compute the same with the same instructions.
#ifndef BYTEPS_REDUCE_HAS_TARGET_ONCE
#define BYTEPS_REDUCE_HAS_TARGET_ONCE
#define BYTEPS_REDUCE_X86_TARGETS (HWY_SSE4 | HWY_AVX2 | HWY_AVX3)
#endif

HWY_BEFORE_NAMESPACE();
namespace byteps {
namespace HWY_NAMESPACE {

#if (HWY_ARCH_X86 && (HWY_TARGET & BYTEPS_REDUCE_X86_TARGETS)) || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

// Are there instructions that convert float16 exactly as core/dtype.h does?
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || (HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64)
#define BYTEPS_REDUCE_FLOAT16_INSTRUCTIONS 1
#else
#define BYTEPS_REDUCE_FLOAT16_INSTRUCTIONS 0
#endif

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
  using Acc = FloatVec;
  static constexpr bool kRounds = true;
  static HWY_INLINE size_t Lanes() { return hn::Lanes(FloatTag()); }
  static HWY_INLINE Acc Load(const uint16_t* from) { return Conversion::Widen(hn::LoadU(HalvesTag(), from)); }
  static HWY_INLINE void Store(Acc acc, uint16_t* to) { hn::StoreU(Conversion::Narrow(acc), HalvesTag(), to); }
  static HWY_INLINE void StreamTwo(Acc a, Acc b, uint16_t* to) {
    const hn::ScalableTag<uint16_t> whole;  // only whole vectors can be streamed
    hn::Stream(hn::Combine(whole, Conversion::Narrow(b), Conversion::Narrow(a)), whole, to);
  }
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

// The formulas of core/dtype.h; its comments say why they are right.
struct Float16Conversion {
#if BYTEPS_REDUCE_FLOAT16_INSTRUCTIONS
  using Tag = hn::Rebind<hwy::float16_t, FloatTag>;
  static HWY_INLINE FloatVec Widen(HalvesVec bits) { return hn::PromoteTo(FloatTag(), hn::BitCast(Tag(), bits)); }
  static HWY_INLINE HalvesVec Narrow(FloatVec value) { return hn::BitCast(HalvesTag(), hn::DemoteTo(Tag(), value)); }
#else
  using SignedVec = hn::Vec<SignedTag>;
  static HWY_INLINE SignedVec Signed(BitsVec bits) { return hn::BitCast(SignedTag(), bits); }
  // All ones where a < b; of numbers below 2^31.
  static HWY_INLINE BitsVec Less(BitsVec a, BitsVec b) {
    return hn::BitCast(BitsTag(), hn::VecFromMask(SignedTag(), hn::Lt(Signed(a), Signed(b))));
  }
  static HWY_INLINE BitsVec Select(BitsVec mask, BitsVec yes, BitsVec no) { return hn::IfVecThenElse(mask, yes, no); }

  static HWY_INLINE FloatVec Widen(HalvesVec half) {
    const BitsVec bits = hn::PromoteTo(BitsTag(), half);
    const BitsVec magnitude = hn::ShiftLeft<13>(hn::And(bits, Constant(0x7fff)));
    const BitsVec normal = hn::Add(magnitude, Constant(0x38000000));
    const BitsVec special = hn::Add(magnitude, Constant(0x70000000));
    const BitsVec quiet = hn::And(Less(Constant(0x0f800000), magnitude), Constant(0x400000));
    const BitsVec subnormal =
        Bits(hn::Sub(Float(hn::Add(magnitude, Constant(0x38800000))), hn::Set(FloatTag(), 0x1p-14f)));
    BitsVec result = Select(Less(magnitude, Constant(0x00800000)), subnormal, normal);
    result = Select(Less(Constant(0x0f7fffff), magnitude), hn::Or(special, quiet), result);
    return Float(hn::Or(result, hn::ShiftLeft<16>(hn::And(bits, Constant(0x8000)))));
  }
  static HWY_INLINE HalvesVec Narrow(FloatVec value) {
    const BitsVec bits = Bits(value);
    const BitsVec sign = hn::And(hn::ShiftRight<16>(bits), Constant(0x8000));
    const BitsVec magnitude = hn::And(bits, Constant(0x7fffffff));
    const BitsVec odd = hn::And(hn::ShiftRight<13>(magnitude), Constant(1));
    const BitsVec normal =
        hn::ShiftRight<13>(hn::Add(hn::Add(hn::Sub(magnitude, Constant(0x38000000)), Constant(0xfff)), odd));
    const BitsVec small = Less(magnitude, Constant(0x38800000));
    const BitsVec subnormal =
        hn::Sub(Bits(hn::Add(Float(hn::And(magnitude, small)), hn::Set(FloatTag(), 0.5f))), Constant(0x3f000000));
    const BitsVec nan = hn::Or(Constant(0x7e00), hn::And(hn::ShiftRight<13>(magnitude), Constant(0x3ff)));
    BitsVec result = Select(small, subnormal, normal);
    result = Select(Less(Constant(0x477fefff), magnitude), Constant(0x7c00), result);
    result = Select(Less(Constant(0x7f800000), magnitude), nan, result);
    return hn::DemoteTo(HalvesTag(), Signed(hn::Or(result, sign)));
  }
#endif
};

using Float16InOrder = InOrder<Float16Conversion>;
using BFloat16InOrder = InOrder<BFloat16Conversion>;

// bfloat16 in pairs: a 32-bit lane holds two elements, and the accumulator is a vector for each; no element changes its
// lane.
struct BFloat16Pairs {
  using Element = uint16_t;
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

template <class Codec, class Op>
HWY_INLINE Four<Codec> FoldInputs(const void* const* inputs, size_t count, size_t at) {
  using T = typename Codec::Element;
  Four<Codec> acc = Four<Codec>::Load(static_cast<const T*>(inputs[0]) + at);
  for (size_t i = 1; i < count; ++i) {
    acc = acc.template Apply<Op>(Four<Codec>::Load(static_cast<const T*>(inputs[i]) + at));
  }
  return acc;
}

template <class Codec, class Op>
size_t Fold(const FoldTask& task) {
  using T = typename Codec::Element;
  const size_t step = 4 * Codec::Lanes();
  size_t at = task.begin;
  const size_t last = task.end < step ? 0 : task.end - step + 1;  // behind the last possible begin of a step
  if (task.inputs.size() == 2 && task.groups.empty() && task.outputs.size() == 1 && task.divisor == 1 &&
      !task.streamed) {
    const T* one = static_cast<const T*>(task.inputs[0]);
    const T* two = static_cast<const T*>(task.inputs[1]);
    T* out = static_cast<T*>(task.outputs[0]);
    for (; at < last; at += step) {
      Four<Codec>::Load(one + at).template Apply<Op>(Four<Codec>::Load(two + at)).Store(out + at);
    }
    return at;
  }
  for (; at < last; at += step) {
    Four<Codec> result;
    if (task.groups.empty()) {
      result = FoldInputs<Codec, Op>(task.inputs.data(), task.inputs.size(), at);
    } else {
      const void* const* inputs = task.inputs.data();
      for (size_t g = 0; g < task.groups.size(); ++g) {
        Four<Codec> of_group = FoldInputs<Codec, Op>(inputs, task.groups[g], at);
        if constexpr (Codec::kRounds) of_group = of_group.Round();
        result = g == 0 ? of_group : result.template Apply<Op>(of_group);
        inputs += task.groups[g];
      }
    }
    if (task.divisor != 1) result = result.Divide(task.divisor);
    for (void* output : task.outputs) {
      if (task.streamed) {
        result.Stream(static_cast<T*>(output) + at);
      } else {
        result.Store(static_cast<T*>(output) + at);
      }
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
      return FoldBy<Native<uint8_t>>(task);
    case BPS_INT32:
      return FoldBy<Native<int32_t>>(task);
    case BPS_INT64:
      return FoldBy<Native<int64_t>>(task);
    case BPS_FLOAT16:
      return FoldBy<Float16InOrder>(task);
    case BPS_FLOAT32:
      return FoldBy<Native<float>>(task);
#if HWY_HAVE_FLOAT64
    case BPS_FLOAT64:
      return FoldBy<Native<double>>(task);
#endif
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
#if HWY_TARGETS & HWY_SSE4
  if (sse4) available.Add(N_SSE4::Kernels());
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
