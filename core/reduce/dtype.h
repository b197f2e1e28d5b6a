// dtype.h - the data types a tensor can have: sizes, names, and the 16-bit floats' conversions.
#ifndef BYTEPS_CORE_REDUCE_DTYPE_H_
#define BYTEPS_CORE_REDUCE_DTYPE_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "abi/byteps.h"
#include "absl/status/status.h"

namespace byteps {

// Is this one of the BPS_* data types?
bool IsDtype(uint32_t dtype);
// Bytes of one element; 0 for an unknown type.
size_t DtypeSize(uint32_t dtype);
// "float32"; "dtype 0x..." is never returned: "unknown" for an unknown type.
const char* DtypeName(uint32_t dtype);
// What memory of it is aligned to: its size, but for complex numbers the size of one part.
size_t DtypeAlignment(uint32_t dtype);
// "sum"; "unknown".
const char* OpName(int32_t op);
// Does this reduction of this data type have a meaning? INVALID_ARGUMENT says why not.
absl::Status CheckReduction(uint32_t dtype, int32_t op);

// IEEE 754 binary16 and bfloat16 as bit patterns. Both conversions are exact upwards, and round to nearest even
// downwards; NaNs stay NaNs (quiet), overflow becomes infinity, subnormals are kept. Branch-free where it matters, so
// that loops over them vectorise.
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

inline float ToFloat(BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded)};
}

// All ones if the condition holds: selects without branches, also where one side is floating-point arithmetic.
inline uint32_t Mask(bool condition) { return 0u - static_cast<uint32_t>(condition); }
// Of numbers below 2^31; compared as signed ones, for which every vector unit has an instruction.
inline uint32_t Less(uint32_t a, uint32_t b) { return Mask(static_cast<int32_t>(a) < static_cast<int32_t>(b)); }
inline uint32_t Select(uint32_t mask, uint32_t yes, uint32_t no) { return (yes & mask) | (no & ~mask); }

inline float ToFloat(Float16 value) {
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fff) << 13;  // exponent and mantissa in their place
  const uint32_t normal = magnitude + 0x38000000;                               // the exponent rebiased
  // Infinities and NaNs get the largest exponent; NaNs become quiet.
  const uint32_t special = magnitude + 0x70000000;
  const uint32_t quiet = Less(0x0f800000, magnitude) & 0x400000;
  // Subnormals: mantissa below an implicit one that is taken away again. No float here is ever subnormal itself, which
  // would cost processors a hundred cycles.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + 0x38800000) - 0x1p-14f);
  uint32_t result = Select(Less(magnitude, 0x00800000), subnormal, normal);
  result = Select(Less(0x0f7fffff, magnitude), special | quiet, result);
  return std::bit_cast<float>(result | static_cast<uint32_t>(value.bits & 0x8000) << 16);
}

inline Float16 ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Normal results: rebias the exponent, round to nearest even in integer arithmetic; a carry runs into the exponent as
  // it should.
  const uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Subnormal results: adding 0.5 leaves the mantissa, rounded by the hardware, in the low bits.
  const uint32_t small = Less(magnitude, 0x38800000);
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude & small) + 0.5f) - 0x3f000000;
  const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  uint32_t result = Select(small, subnormal, normal);
  result = Select(Less(0x477fefff, magnitude), 0x7c00, result);  // 65520 and above
  result = Select(Less(0x7f800000, magnitude), nan, result);
  return {static_cast<uint16_t>(result | sign)};
}

}  // namespace byteps

#endif  // BYTEPS_CORE_REDUCE_DTYPE_H_
