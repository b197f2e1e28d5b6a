#include "core/reduce/dtype.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace byteps {
namespace {

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

// The value of a 16-bit float, from the definition of its format.
double Value(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// Rounds to nearest even by looking at both neighbours. Not for NaN.
uint16_t RoundSlowly(float value, int exponent_bits, int mantissa_bits) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  // The bit patterns of finite magnitudes are in the order of their values: bisect.
  uint16_t low = 0;
  uint16_t high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (Value(middle, exponent_bits, mantissa_bits) <= magnitude ? low : high) = middle;
  }
  const double below = Value(low, exponent_bits, mantissa_bits);
  // Infinity counts as the next power of two here.
  const double above =
      high == infinity ? std::ldexp(1.0, 1 << (exponent_bits - 1)) : Value(high, exponent_bits, mantissa_bits);
  if (std::isinf(magnitude)) return sign | infinity;
  const double to_low = magnitude - below;
  const double to_high = above - magnitude;
  if (to_low < to_high) return sign | low;
  if (to_high < to_low) return sign | high;
  return sign | ((low & 1) == 0 ? low : high);
}

TEST(DtypeTest, WhatHasNoMeaningIsRefused) {
  EXPECT_TRUE(CheckReduction(BPS_COMPLEX64, BPS_PRODUCT).ok());
  EXPECT_TRUE(CheckReduction(BPS_BOOL, BPS_SUM).ok());
  EXPECT_TRUE(CheckReduction(BPS_INT16, BPS_BIT_XOR).ok());
  EXPECT_FALSE(CheckReduction(BPS_COMPLEX128, BPS_MAX).ok());
  EXPECT_FALSE(CheckReduction(BPS_BOOL, BPS_AVERAGE).ok());
  EXPECT_FALSE(CheckReduction(BPS_FLOAT16, BPS_BIT_AND).ok());
  EXPECT_FALSE(CheckReduction(BPS_FLOAT32, BPS_BIT_XOR + 1).ok());
  EXPECT_FALSE(CheckReduction(BPS_FLOAT32, -1).ok());
}

TEST(DtypeTest, SizesAndNames) {
  const std::vector<std::pair<uint32_t, size_t>> sizes = {
      {BPS_INT8, 1},  {BPS_UINT8, 1},   {BPS_FLOAT16, 2}, {BPS_BFLOAT16, 2}, {BPS_INT32, 4},     {BPS_FLOAT32, 4},
      {BPS_INT64, 8}, {BPS_FLOAT64, 8}, {BPS_INT16, 2},   {BPS_BOOL, 1},     {BPS_COMPLEX64, 8}, {BPS_COMPLEX128, 16},
  };
  for (const auto& [dtype, size] : sizes) {
    EXPECT_TRUE(IsDtype(dtype));
    EXPECT_EQ(DtypeSize(dtype), size) << DtypeName(dtype);
    EXPECT_STRNE(DtypeName(dtype), "unknown");
  }
  for (uint32_t unknown : {uint32_t{0}, uint32_t{1}, ~uint32_t{0}, uint32_t{BPS_FLOAT32} + 1}) {
    EXPECT_FALSE(IsDtype(unknown)) << unknown;
    EXPECT_EQ(DtypeSize(unknown), 0u);
    EXPECT_STREQ(DtypeName(unknown), "unknown");
  }
  EXPECT_STREQ(OpName(BPS_AVERAGE), "average");
  EXPECT_STREQ(OpName(-1), "unknown");
  EXPECT_STREQ(OpName(255), "unknown");
}

TEST(DtypeTest, EveryFloat16Upwards) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = Value(static_cast<uint16_t>(bits), 5, 10);
    const float got = ToFloat(Float16{static_cast<uint16_t>(bits)});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      // Sign and payload are kept, and the NaN is quiet.
      ASSERT_EQ(Bits(got), (bits & 0x8000) << 16 | 0x7fc00000 | (bits & 0x3ff) << 13);
    } else {
      ASSERT_EQ(Bits(got), Bits(static_cast<float>(expected))) << bits;
    }
  }
}

TEST(DtypeTest, EveryBFloat16Upwards) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = Value(static_cast<uint16_t>(bits), 8, 7);
    const float got = ToFloat(BFloat16{static_cast<uint16_t>(bits)});
    ASSERT_EQ(Bits(got), bits << 16);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), expected) << bits;
    }
  }
}

TEST(DtypeTest, EverySixteenBitFloatComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const bool nan16 = (narrow & 0x7fff) > 0x7c00;
    ASSERT_EQ(ToFloat16(ToFloat(Float16{narrow})).bits, nan16 ? narrow | 0x200 : narrow);
    const bool nan_b = (narrow & 0x7fff) > 0x7f80;
    ASSERT_EQ(ToBFloat16(ToFloat(BFloat16{narrow})).bits, nan_b ? narrow | 0x40 : narrow);
  }
}

// Every float from which the nearest 16-bit float changes, and its neighbours: the values of the format, and the points
// in the middle between two of them.
template <typename Check>
void AtEveryBoundary(int exponent_bits, int mantissa_bits, const Check& check) {
  const auto infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  for (uint16_t bits = 0; bits < infinity; ++bits) {
    const double value = Value(bits, exponent_bits, mantissa_bits);
    const double next = bits + 1 == infinity ? std::ldexp(1.0, 1 << (exponent_bits - 1))
                                             : Value(static_cast<uint16_t>(bits + 1), exponent_bits, mantissa_bits);
    for (const double at : {value, (value + next) / 2, (3 * value + next) / 4}) {
      const uint32_t around = Bits(static_cast<float>(at));
      for (uint32_t near = around < 3 ? 0 : around - 3; near <= around + 3; ++near) {
        check(FromBits(near));
        check(FromBits(near | 0x80000000));
      }
    }
  }
}

TEST(DtypeTest, BoundariesDownToFloat16) {
  AtEveryBoundary(5, 10, [](float value) {
    if (std::isnan(value)) return;
    ASSERT_EQ(ToFloat16(value).bits, RoundSlowly(value, 5, 10)) << std::hexfloat << value;
  });
}

TEST(DtypeTest, BoundariesDownToBFloat16) {
  AtEveryBoundary(8, 7, [](float value) {
    if (std::isnan(value)) return;
    ASSERT_EQ(ToBFloat16(value).bits, RoundSlowly(value, 8, 7)) << std::hexfloat << value;
  });
}

TEST(DtypeTest, FloatsAllOverTheRangeDownwards) {
  // A stride that is prime to everything: all exponents, and mantissas of every kind.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    const float value = FromBits(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(ToFloat16(value).bits, RoundSlowly(value, 5, 10)) << std::hexfloat << value;
    ASSERT_EQ(ToBFloat16(value).bits, RoundSlowly(value, 8, 7)) << std::hexfloat << value;
  }
}

TEST(DtypeTest, Overflow) {
  EXPECT_EQ(ToFloat16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(std::nextafterf(65520.0f, 0)).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-65520.0f).bits, 0xfc00);
  EXPECT_EQ(ToFloat16(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(ToBFloat16(FromBits(0x7f7f7fff)).bits, 0x7f7f);
  EXPECT_EQ(ToBFloat16(FromBits(0x7f7f8000)).bits, 0x7f80);
  EXPECT_EQ(ToBFloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

TEST(DtypeTest, NansStayNans) {
  // Also those whose payload lies in the bits that are cut off.
  for (const uint32_t payload : {0x1u, 0x1000u, 0x1fffu, 0x2000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float nan = FromBits(sign | 0x7f800000 | payload);
      const uint16_t half = ToFloat16(nan).bits;
      EXPECT_EQ(half, sign >> 16 | 0x7e00 | payload >> 13) << payload;
      const uint16_t brain = ToBFloat16(nan).bits;
      EXPECT_EQ(brain, sign >> 16 | 0x7fc0 | payload >> 16) << payload;
    }
  }
}

}  // namespace
}  // namespace byteps
