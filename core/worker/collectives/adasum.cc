#include "core/worker/collectives/adasum.h"

#include "abi/byteps.h"
#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"

namespace byteps::adasum {
namespace {

template <typename T>
void WidenAll(const void* from, double* to, size_t elements) {
  const T* in = static_cast<const T*>(from);
  for (size_t i = 0; i < elements; ++i) {
    if constexpr (sizeof(T) == 2) {
      to[i] = static_cast<double>(ToFloat(in[i]));
    } else {
      to[i] = static_cast<double>(in[i]);
    }
  }
}

}  // namespace

absl::Status CheckType(uint32_t dtype) {
  if (dtype == BPS_FLOAT16 || dtype == BPS_BFLOAT16 || dtype == BPS_FLOAT32 || dtype == BPS_FLOAT64) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("adasum of ", DtypeName(dtype), " has no meaning: it is of floating-point numbers"));
}

void Widen(uint32_t dtype, const void* from, double* to, size_t elements) {
  switch (dtype) {
    case BPS_FLOAT16:
      return WidenAll<Float16>(from, to, elements);
    case BPS_BFLOAT16:
      return WidenAll<BFloat16>(from, to, elements);
    case BPS_FLOAT32:
      return WidenAll<float>(from, to, elements);
    default:
      return WidenAll<double>(from, to, elements);
  }
}

Dots PartialDots(const double* a, const double* b, size_t elements) {
  Dots dots;
  for (size_t i = 0; i < elements; ++i) {
    dots.aa += a[i] * a[i];
    dots.bb += b[i] * b[i];
    dots.ab += a[i] * b[i];
  }
  return dots;
}

void Combine(const Dots& dots, double* a, const double* b, size_t elements) {
  const double of_a = dots.aa == 0 ? 1 : 1 - dots.ab / (2 * dots.aa);
  const double of_b = dots.bb == 0 ? 1 : 1 - dots.ab / (2 * dots.bb);
  for (size_t i = 0; i < elements; ++i) a[i] = of_a * a[i] + of_b * b[i];
}

void Narrow(uint32_t dtype, const double* from, void* to, size_t elements) {
  for (size_t i = 0; i < elements; ++i) {
    switch (dtype) {
      case BPS_FLOAT16:
        static_cast<Float16*>(to)[i] = ToFloat16(static_cast<float>(from[i]));
        break;
      case BPS_BFLOAT16:
        static_cast<BFloat16*>(to)[i] = ToBFloat16(static_cast<float>(from[i]));
        break;
      case BPS_FLOAT32:
        static_cast<float*>(to)[i] = static_cast<float>(from[i]);
        break;
      default:
        static_cast<double*>(to)[i] = from[i];
    }
  }
}

}  // namespace byteps::adasum
