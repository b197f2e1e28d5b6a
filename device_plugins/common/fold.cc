#include "device_plugins/common/fold.h"

#include <cstring>
#include <string>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"
#include "device_plugins/common/fold_arithmetic.h"

namespace byteps::devices {
namespace {

bool IsFloat(uint32_t dtype) {
  return dtype == BPS_FLOAT32 || dtype == BPS_FLOAT64 || dtype == BPS_FLOAT16 || dtype == BPS_BFLOAT16;
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
    if constexpr (!IsInteger<Wide>::value) {
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
