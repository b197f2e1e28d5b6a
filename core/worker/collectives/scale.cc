#include "core/worker/collectives/scale.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "abi/byteps.h"
#include "core/reduce/dtype.h"

namespace byteps {
namespace {

template <typename T>
T Times(T value, double factor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else {
    const double product = static_cast<double>(value) * factor;
    if (std::isnan(product)) return 0;
    // The largest int64 is no float64; its successor is.
    if (product >= std::ldexp(1.0, std::numeric_limits<T>::digits)) return std::numeric_limits<T>::max();
    if (product <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    return static_cast<T>(product);
  }
}
Float16 Times(Float16 value, double factor) { return ToFloat16(ToFloat(value) * static_cast<float>(factor)); }
BFloat16 Times(BFloat16 value, double factor) { return ToBFloat16(ToFloat(value) * static_cast<float>(factor)); }

template <typename T>
void ScaleAll(double factor, const void* from, void* to, size_t elements) {
  const T* in = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  for (size_t i = 0; i < elements; ++i) out[i] = Times(in[i], factor);
}

}  // namespace

absl::Status CheckScalable(uint32_t dtype) {
  if (dtype != BPS_BOOL) return absl::OkStatus();
  return absl::InvalidArgumentError("bools cannot be scaled");
}

void Scale(uint32_t dtype, double factor, const void* from, void* to, size_t elements) {
  switch (dtype) {
    case BPS_INT8:
      return ScaleAll<int8_t>(factor, from, to, elements);
    case BPS_UINT8:
      return ScaleAll<uint8_t>(factor, from, to, elements);
    case BPS_INT16:
      return ScaleAll<int16_t>(factor, from, to, elements);
    case BPS_INT32:
      return ScaleAll<int32_t>(factor, from, to, elements);
    case BPS_INT64:
      return ScaleAll<int64_t>(factor, from, to, elements);
    case BPS_FLOAT16:
      return ScaleAll<Float16>(factor, from, to, elements);
    case BPS_BFLOAT16:
      return ScaleAll<BFloat16>(factor, from, to, elements);
    case BPS_FLOAT32:
      return ScaleAll<float>(factor, from, to, elements);
    case BPS_FLOAT64:
      return ScaleAll<double>(factor, from, to, elements);
    case BPS_COMPLEX64:
      return ScaleAll<float>(factor, from, to, 2 * elements);
    case BPS_COMPLEX128:
      return ScaleAll<double>(factor, from, to, 2 * elements);
    default:
      return;
  }
}

}  // namespace byteps
