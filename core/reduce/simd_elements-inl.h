// simd_elements-inl.h - elements in memory, and the accumulators that they become: of their own type (Native), or
// float32 of the 16-bit floats.
//
// Compiled once per target: the guard opens and shuts with HWY_TARGET_TOGGLE.
#if defined(CORE_REDUCE_SIMD_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CORE_REDUCE_SIMD_ELEMENTS_INL_H_
#undef CORE_REDUCE_SIMD_ELEMENTS_INL_H_
#else
#define CORE_REDUCE_SIMD_ELEMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/reduce/simd_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace byteps {
namespace HWY_NAMESPACE {

#if BYTEPS_REDUCE_TARGET

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

// float32 bits whose upper half is the bfloat16 nearest to `value`, as ToBFloat16() rounds; of a NaN only where its
// lower half is zero and it is quiet.
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
// lane. `kQuiet`: accumulators are results of arithmetic on widened elements. A NaN of these is quiet and has nothing
// in its lower half, which rounds it to itself without asking; asking is a third of the rounding.
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

#endif  // BYTEPS_REDUCE_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace byteps
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
