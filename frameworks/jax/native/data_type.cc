#include "frameworks/jax/native/data_type.h"

#include "abi/byteps.h"

namespace byteps::jax {

std::optional<uint32_t> DataType(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::DataType::S8:
      return BPS_INT8;
    case xla::ffi::DataType::S16:
      return BPS_INT16;
    case xla::ffi::DataType::S32:
      return BPS_INT32;
    case xla::ffi::DataType::S64:
      return BPS_INT64;
    case xla::ffi::DataType::U8:
      return BPS_UINT8;
    case xla::ffi::DataType::F16:
      return BPS_FLOAT16;
    case xla::ffi::DataType::F32:
      return BPS_FLOAT32;
    case xla::ffi::DataType::F64:
      return BPS_FLOAT64;
    case xla::ffi::DataType::BF16:
      return BPS_BFLOAT16;
    case xla::ffi::DataType::C64:
      return BPS_COMPLEX64;
    case xla::ffi::DataType::C128:
      return BPS_COMPLEX128;
    case xla::ffi::DataType::PRED:
      return BPS_BOOL;
    default:
      return std::nullopt;
  }
}

}  // namespace byteps::jax
