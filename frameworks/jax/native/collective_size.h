// collective_size.h - whether a collective has brought what a program was compiled for.
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_COLLECTIVE_SIZE_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_COLLECTIVE_SIZE_H_

#include <cstdint>
#include <string>

#include "frameworks/common/attached_session.h"

namespace byteps::jax {

// The output has the size that a program was compiled for; that of a gather is the sum of what all ranks have. An error
// names the operation and both.
binding::Outcome CheckSize(const std::string& name, uint64_t bytes, uint64_t expected);

}  // namespace byteps::jax

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_COLLECTIVE_SIZE_H_
