// simd_operations-inl.h - sum, product, minimum, ... of two vectors of accumulators.
//
// Compiled once per target: the guard opens and shuts with HWY_TARGET_TOGGLE.
#if defined(CORE_REDUCE_SIMD_OPERATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CORE_REDUCE_SIMD_OPERATIONS_INL_H_
#undef CORE_REDUCE_SIMD_OPERATIONS_INL_H_
#else
#define CORE_REDUCE_SIMD_OPERATIONS_INL_H_
#endif

#include <type_traits>

#include "core/reduce/simd_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace byteps {
namespace HWY_NAMESPACE {

#if BYTEPS_REDUCE_TARGET

// Apply() is of elements folded in their own type, ApplyWide() of 16-bit floats in float32.
struct Sum {
  static constexpr bool kQuiets = true;  // no signalling NaN comes out
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V Apply(D, V a, V b) {
    return hn::Add(a, b);
  }
  // a x 1 + b is a + b in every bit. Some processors (Zen) multiply and add where nothing else of a 16-bit fold is
  // done, and add where the conversions and shifts are, which are the bound.
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

#endif  // BYTEPS_REDUCE_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace byteps
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
