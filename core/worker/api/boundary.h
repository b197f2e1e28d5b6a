// boundary.h - the one try/catch between C++ and the C ABI: no exception crosses it.
//
//     bps_status* bps_declare(bps_session* session, const bps_declare_args* args, bps_tensor** tensor) noexcept {
//       return Boundary("bps_declare", [&]() -> absl::Status { ... });
//     }
//
// Functions that return something else than a status use BoundaryOr(fallback, body). An exception that arrives here is
// a defect of the library (or no memory): it becomes BPS_INTERNAL with the function's name, or the immortal
// out-of-memory status.
#ifndef BYTEPS_CORE_WORKER_API_BOUNDARY_H_
#define BYTEPS_CORE_WORKER_API_BOUNDARY_H_

#include <exception>
#include <new>
#include <utility>

#include "abi/byteps.h"
#include "core/base/status.h"

namespace byteps {

// The status of the exception being handled. Call it inside a catch block only.
bps_status* StatusOfCurrentException(const char* function) noexcept;

// Runs `body`, which returns absl::Status, and gives its outcome to the C caller.
template <typename Body>
bps_status* Boundary(const char* function, Body&& body) noexcept {
  try {
    return StatusToC(std::forward<Body>(body)());
  } catch (...) {
    return StatusOfCurrentException(function);
  }
}

// Runs `body` and returns its value, or `fallback` if it throws.
template <typename Value, typename Body>
Value BoundaryOr(Value fallback, Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return fallback;
  }
}

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_API_BOUNDARY_H_
