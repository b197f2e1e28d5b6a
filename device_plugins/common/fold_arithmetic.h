// fold_arithmetic.h - one element of docs/determinism.md's fold, for the CPU and for the kernels of a GPU.
//
//     float sum = Float16::Load(a[i]);
//     sum = Join(sum, Float16::Load(b[i]), BPS_SUM);
//     to[i] = Float16::Store(sum);
//
// 16-bit floats are folded in float32 and rounded once; a minimum or maximum keeps a NaN, and the earlier of two equal
// operands. Compile without contraction (-ffp-contract=off, --fmad=false).
//
// Threads: any.
#ifndef BYTEPS_DEVICE_PLUGINS_COMMON_FOLD_ARITHMETIC_H_
#define BYTEPS_DEVICE_PLUGINS_COMMON_FOLD_ARITHMETIC_H_

#include <stdint.h>

#include "abi/byteps.h"

#ifdef __CUDACC__
#define BPS_FOLD_CODE __host__ __device__ inline
#else
#define BPS_FOLD_CODE inline
#endif

namespace byteps::devices {

BPS_FOLD_CODE float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

BPS_FOLD_CODE uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// How an element is stored, and what it is folded in.
template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static BPS_FOLD_CODE Wide Load(Stored value) { return value; }
  static BPS_FOLD_CODE Stored Store(Wide value) { return value; }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Wide = float;
  static BPS_FOLD_CODE float Load(uint16_t value) { return FloatOf(static_cast<uint32_t>(value) << 16); }
  static BPS_FOLD_CODE uint16_t Store(float value) {
    const uint32_t bits = BitsOf(value);
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Wide = float;
  static BPS_FOLD_CODE float Load(uint16_t value) {
    const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16;
    const uint32_t exponent = value >> 10 & 31, fraction = value & 1023;
    if (exponent == 31) return FloatOf(sign | (fraction == 0 ? 0x7F800000u : 0x7FC00000u) | fraction << 13);  // quiet
    if (exponent != 0) return FloatOf(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // exact
    return FloatOf(sign | BitsOf(magnitude));
  }
  static BPS_FOLD_CODE uint16_t Store(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00);  // 65520 rounds up to infinity
    if (magnitude < 0x38800000u) {
      // Subnormal: added to 0.5, of which the last place is 2^-24, it is rounded to that, ties to even.
      return static_cast<uint16_t>(sign | (BitsOf(FloatOf(magnitude) + 0.5f) - 0x3F000000u));
    }
    // A carry into the exponent is right, too.
    return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xFFF + (magnitude >> 13 & 1)) >> 13);
  }
};

template <typename T>
struct IsInteger {
  static constexpr bool value = static_cast<T>(0.5) == static_cast<T>(0);
};

template <typename Wide>
BPS_FOLD_CODE Wide Join(Wide a, Wide b, int32_t reduction) {
  if (reduction == BPS_MIN || reduction == BPS_MAX) {
    if (a != a) return a;
    if (b != b) return b;
    return reduction == BPS_MIN ? (b < a ? b : a) : (a < b ? b : a);
  }
  if constexpr (IsInteger<Wide>::value) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);  // wraps
    return static_cast<Wide>(reduction == BPS_PRODUCT ? x * y : x + y);
  } else {
    return reduction == BPS_PRODUCT ? a * b : a + b;
  }
}

}  // namespace byteps::devices

#endif  // BYTEPS_DEVICE_PLUGINS_COMMON_FOLD_ARITHMETIC_H_
