// scale.h - multiplies the elements of a tensor by a number: prescale and postscale of reductions.
//
//     if (absl::Status status = CheckScalable(dtype); !status.ok()) ...
//     Scale(BPS_FLOAT16, 0.5, from, to, elements);
//
// One rounding: float16 and bfloat16 are multiplied in float32, float32 by the factor as a float32, complex numbers by
// parts; integers are multiplied in float64, and the product is cut towards zero and kept within the type's range (NaN
// is 0).
//
// Threads: plain functions. `from` may be `to`.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_SCALE_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_SCALE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace byteps {

// Bools have no multiples: INVALID_ARGUMENT.
absl::Status CheckScalable(uint32_t dtype);
void Scale(uint32_t dtype, double factor, const void* from, void* to, size_t elements);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_SCALE_H_
