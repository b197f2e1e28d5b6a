// data_type.h - XLA's data types as those of abi/byteps.h.
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_DATA_TYPE_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_DATA_TYPE_H_

#include <cstdint>
#include <optional>

#include "xla/ffi/api/ffi.h"

namespace byteps::jax {

// BPS_FLOAT32 and so on; nothing for a type that cannot be sent.
std::optional<uint32_t> DataType(xla::ffi::DataType type);

}  // namespace byteps::jax

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_DATA_TYPE_H_
