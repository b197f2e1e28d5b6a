#include "device_plugins/common/convert.h"

#include <cstring>
#include <string>

#include "abi/byteps.h"
#include "device_plugins/common/convert_arithmetic.h"
#include "device_plugins/common/error.h"
#include "device_plugins/common/fold_arithmetic.h"

namespace byteps::devices {
namespace {

template <typename From, typename To>
void ConvertAs(void* to, const void* from, uint64_t count, double factor) {
  const auto wide = static_cast<typename From::Wide>(factor);
  for (uint64_t i = 0; i < count; ++i) {
    typename From::Stored value;
    std::memcpy(&value, static_cast<const char*>(from) + i * sizeof value, sizeof value);
    const typename To::Stored stored = ConvertOne<From, To>(value, wide);
    std::memcpy(static_cast<char*>(to) + i * sizeof stored, &stored, sizeof stored);
  }
}

using Function = void (*)(void* to, const void* from, uint64_t count, double factor);

// nullptr: there is none.
Function Find(uint32_t to, uint32_t from) {
  if (to == from && from == BPS_FLOAT32) return ConvertAs<Plain<float>, Plain<float>>;
  if (to == from && from == BPS_FLOAT64) return ConvertAs<Plain<double>, Plain<double>>;
  if (to == from && from == BPS_FLOAT16) return ConvertAs<Float16, Float16>;
  if (to == from && from == BPS_BFLOAT16) return ConvertAs<Bfloat16, Bfloat16>;
  if (from == BPS_FLOAT32 && to == BPS_FLOAT16) return ConvertAs<Plain<float>, Float16>;
  if (from == BPS_FLOAT32 && to == BPS_BFLOAT16) return ConvertAs<Plain<float>, Bfloat16>;
  if (from == BPS_FLOAT16 && to == BPS_FLOAT32) return ConvertAs<Float16, Plain<float>>;
  if (from == BPS_BFLOAT16 && to == BPS_FLOAT32) return ConvertAs<Bfloat16, Plain<float>>;
  return nullptr;
}

}  // namespace

void CheckConvert(uint32_t to_dtype, uint32_t from_dtype) {
  if (Find(to_dtype, from_dtype) != nullptr) return;
  throw Error(BPS_UNIMPLEMENTED, "devices do not convert the data type " + std::to_string(from_dtype) + " to " +
                                     std::to_string(to_dtype) + " of byteps.h");
}

void Convert(void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype, uint64_t count, double factor) {
  CheckConvert(to_dtype, from_dtype);
  Find(to_dtype, from_dtype)(to, from, count, factor);
}

}  // namespace byteps::devices
