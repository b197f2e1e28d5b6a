#include "device_plugins/common/fold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"

namespace byteps::devices {
namespace {

bool IsFloat(uint32_t dtype) {
  return dtype == BPS_FLOAT32 || dtype == BPS_FLOAT64 || dtype == BPS_FLOAT16 || dtype == BPS_BFLOAT16;
}

// How an element is stored, and what it is folded in.
template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static Wide Load(Stored value) { return value; }
  static Stored Store(Wide value) { return value; }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Wide = float;
  static float Load(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }
  static uint16_t Store(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Wide = float;
  static float Load(uint16_t value) {
    const int exponent = value >> 10 & 31, fraction = value & 1023;
    float magnitude = 0;
    if (exponent == 31) {
      magnitude = fraction != 0 ? NAN : INFINITY;
    } else {
      magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    }
    return (value & 0x8000) != 0 ? -magnitude : magnitude;
  }
  static uint16_t Store(float value) {
    const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
    if (std::isnan(value)) return sign | 0x7E00;
    const float magnitude = std::fabs(value);
    if (magnitude >= 65520.0F) return sign | 0x7C00;
    int exponent = 0;
    std::frexp(magnitude, &exponent);  // magnitude < 2^exponent
    if (magnitude == 0) return sign;
    const int unit = std::max(exponent - 11, -24);  // of the last place
    // Exact but for the rounding, which is to nearest, ties to even.
    const auto steps = static_cast<uint32_t>(std::nearbyintf(std::ldexp(magnitude, -unit)));
    // A carry into the next exponent is a carry of these bits, too.
    return static_cast<uint16_t>(sign | (static_cast<uint32_t>(unit + 24) * 1024 + steps));
  }
};

template <typename Wide>
Wide Join(Wide a, Wide b, int32_t reduction) {
  if (reduction == BPS_MIN || reduction == BPS_MAX) {
    if (a != a) return a;
    if (b != b) return b;
    return reduction == BPS_MIN ? (b < a ? b : a) : (a < b ? b : a);
  }
  if constexpr (std::is_integral_v<Wide>) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);  // wraps
    return static_cast<Wide>(reduction == BPS_PRODUCT ? x * y : x + y);
  } else {
    return reduction == BPS_PRODUCT ? a * b : a + b;
  }
}

template <typename Type>
void FoldAs(void* to, const std::vector<const void*>& sources, uint64_t count, int32_t reduction) {
  using Stored = typename Type::Stored;
  using Wide = typename Type::Wide;
  const auto at = [](const void* from, uint64_t i) {
    Stored value;
    std::memcpy(&value, static_cast<const char*>(from) + i * sizeof value, sizeof value);
    return Type::Load(value);
  };
  for (uint64_t i = 0; i < count; ++i) {
    Wide sum = at(sources[0], i);
    for (size_t s = 1; s < sources.size(); ++s) sum = Join<Wide>(sum, at(sources[s], i), reduction);
    if constexpr (!std::is_integral_v<Wide>) {
      if (reduction == BPS_AVERAGE) sum = sum / static_cast<Wide>(sources.size());
    }
    const Stored value = Type::Store(sum);
    std::memcpy(static_cast<char*>(to) + i * sizeof value, &value, sizeof value);
  }
}

[[noreturn]] void Unknown(const char* what, int64_t number) {
  throw Error(BPS_UNIMPLEMENTED, std::string("the collectives of devices do not take ") + what + " " +
                                     std::to_string(number) + " of byteps.h");
}

}  // namespace

uint64_t ElementBytes(uint32_t dtype) {
  switch (dtype) {
    case BPS_INT8:
    case BPS_UINT8:
      return 1;
    case BPS_FLOAT16:
    case BPS_BFLOAT16:
      return 2;
    case BPS_FLOAT32:
    case BPS_INT32:
      return 4;
    case BPS_FLOAT64:
    case BPS_INT64:
      return 8;
    default:
      Unknown("data type", dtype);
  }
}

void CheckFold(uint32_t dtype, int32_t reduction) {
  ElementBytes(dtype);
  const bool plain = reduction == BPS_SUM || reduction == BPS_MIN || reduction == BPS_MAX || reduction == BPS_PRODUCT;
  if (!plain && !(reduction == BPS_AVERAGE && IsFloat(dtype))) Unknown("reduction", reduction);
}

void Fold(void* to, const std::vector<const void*>& sources, uint64_t count, uint32_t dtype, int32_t reduction) {
  CheckFold(dtype, reduction);
  switch (dtype) {
    case BPS_INT8:
      return FoldAs<Plain<int8_t>>(to, sources, count, reduction);
    case BPS_UINT8:
      return FoldAs<Plain<uint8_t>>(to, sources, count, reduction);
    case BPS_INT32:
      return FoldAs<Plain<int32_t>>(to, sources, count, reduction);
    case BPS_INT64:
      return FoldAs<Plain<int64_t>>(to, sources, count, reduction);
    case BPS_FLOAT32:
      return FoldAs<Plain<float>>(to, sources, count, reduction);
    case BPS_FLOAT64:
      return FoldAs<Plain<double>>(to, sources, count, reduction);
    case BPS_FLOAT16:
      return FoldAs<Float16>(to, sources, count, reduction);
    default:
      return FoldAs<Bfloat16>(to, sources, count, reduction);
  }
}

}  // namespace byteps::devices
