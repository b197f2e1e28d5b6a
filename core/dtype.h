// dtype.h - the data types a tensor can have: sizes, names, and the 16-bit floats' conversions.
#ifndef BYTEPS_CORE_DTYPE_H_
#define BYTEPS_CORE_DTYPE_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "abi/byteps.h"

namespace byteps {

// Is this one of the BPS_* data types?
bool IsDtype(uint32_t dtype);
// Bytes of one element; 0 for an unknown type.
size_t DtypeSize(uint32_t dtype);
// "float32"; "dtype 0x..." is never returned: "unknown" for an unknown type.
const char* DtypeName(uint32_t dtype);
// "sum"; "unknown".
const char* OpName(int32_t op);

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

inline float ToFloat(Float16 value) {
  // Exponent and mantissa moved into float32's place are off by a factor of 2^112, also for subnormals, which the
  // multiplication normalises; what was infinity or NaN gets its exponent set by hand.
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000 | ((magnitude & 0x7fffff) != 0 ? 0x400000 : 0);
  const uint32_t result = magnitude >= 0x0f800000 ? special : scaled;
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
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
  result = magnitude >= 0x477ff000 ? 0x7c00 : result;  // 65520 and above
  result = magnitude > 0x7f800000 ? nan : result;
  return {static_cast<uint16_t>(result | sign)};
}

}  // namespace byteps

#endif  // BYTEPS_CORE_DTYPE_H_
