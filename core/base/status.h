// status.h - errors, inside as absl::Status and at the C boundary as bps_status.
//
//     absl::Status error = Retryable(absl::FailedPreconditionError("tensor \"w\": rank 0 ... rank 1 ..."));
//     return StatusToC(error);                    // the caller of the C function frees it
//
// Whether trying again can help travels as a payload of the absl::Status, so that it survives copies and returns
// through code that knows nothing of it. A status without the payload is not retryable; Annotate() keeps it.
//
// Threads:   free functions; statuses are immutable.
// Ownership: StatusToC gives a new object that belongs to the caller (bps_status_free); StatusFromC only reads.
// Errors:    without memory for an object StatusToC answers with one immortal object (BPS_RESOURCE_EXHAUSTED), which
//            bps_status_free leaves alone.
#ifndef BYTEPS_CORE_BASE_STATUS_H_
#define BYTEPS_CORE_BASE_STATUS_H_

#include <cstdint>
#include <string_view>

#include "abi/byteps.h"
#include "absl/status/status.h"

namespace byteps {

// Marks an error as one after which the same call may succeed on this session. OK stays OK. UNAVAILABLE stays unmarked:
// what is lost ends the session, and an operation may hear of it from another rank before the session does.
absl::Status Retryable(absl::Status status);

// True if `status` is an error marked by Retryable.
bool IsRetryable(const absl::Status& status);

// "context: message", with code and payloads kept. OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// A status of a code of byteps.h. BPS_OK gives OK whatever the message; an unknown code gives kUnknown, naming it.
absl::Status MakeStatus(int32_t code, std::string_view message);

// The code of `status` as a number of byteps.h.
int32_t StatusCode(const absl::Status& status);

// The name of a code of byteps.h, such as "DEADLINE_EXCEEDED"; "code 77" has the name "UNKNOWN".
const char* StatusCodeName(int32_t code);

// A new C status, or nullptr for OK.
bps_status* StatusToC(const absl::Status& status) noexcept;

// The immortal status for "no memory".
bps_status* OutOfMemoryStatus() noexcept;

// The same error as absl::Status; nullptr gives OK.
absl::Status StatusFromC(const bps_status* status);

// As StatusFromC, and frees `status`.
absl::Status TakeStatus(bps_status* status);

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_STATUS_H_
