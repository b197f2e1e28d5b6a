// tensor_name.h - the name under which an operation of a compiled program meets those of the other workers.
//
// A program carries its name as an attribute. Two things are known only when it runs, and come as further operands:
//
//   u8[n]  a name, padded with NULs, in place of the attribute's: operations outside of a program, which are compiled
//          once for all names
//   s32[]  which device of several this is: "/<number>" is appended, since each has a tensor of its own
//
// Batched programs put dimensions of size 1 before those.
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_TENSOR_NAME_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_TENSOR_NAME_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace byteps::jax {

// Copies `bytes` bytes of an operand to the host.
using ReadOperand = std::function<xla::ffi::Error(const void* from, size_t bytes, void* to)>;

// Of operands in host memory.
xla::ffi::Error ReadHostMemory(const void* from, size_t bytes, void* to);

// The name; an error if an operand is none of these, or cannot be read.
xla::ffi::ErrorOr<std::string> TensorName(std::string_view attribute, const xla::ffi::RemainingArgs& operands,
                                          const ReadOperand& read = ReadHostMemory);

}  // namespace byteps::jax

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_TENSOR_NAME_H_
