// check_args.h - what every function of the C ABI checks of its arguments before it asks the session.
//
//     RETURN_IF_ERROR(CheckNotNull(session, "session"));
//     RETURN_IF_ERROR(CheckDevice("bps_push_pull_args.input_device", args.input_device, args.input_device_id));
//
// All of them: OK, or INVALID_ARGUMENT (of devices also UNIMPLEMENTED) that names the argument and its value.
//
// Threads: free functions without state.
#ifndef BYTEPS_CORE_WORKER_API_CHECK_ARGS_H_
#define BYTEPS_CORE_WORKER_API_CHECK_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"

#define RETURN_IF_ERROR(expression)     \
  do {                                  \
    absl::Status error_ = (expression); \
    if (!error_.ok()) return error_;    \
  } while (false)

namespace byteps {

absl::Status CheckNotNull(const void* pointer, const char* what);
absl::Status CheckTimeout(int64_t timeout_ms);
// `which`: the field of the device; its id is in `which`_id. `gpus`: may it be memory that a GPU has a part in?
absl::Status CheckDevice(const char* which, int32_t device, int32_t device_id, bool gpus = false);
// `what`: the field; a shape of so many extents is read behind this.
absl::Status CheckDimensions(const char* what, int32_t ndim);
// A field without meaning must be 0: otherwise it could never be given one. `name`: of the struct.
absl::Status CheckReserved(const char* name, int32_t value);
// FAILED_PRECONDITION inside a callback.
absl::Status CheckMayBlock(const char* function);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_API_CHECK_ARGS_H_
