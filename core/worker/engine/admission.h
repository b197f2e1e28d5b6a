// admission.h - what can be seen to be wrong with a submission without the other ranks.
//
//     if (absl::Status status = CheckSubmission(asked, size); !status.ok()) return status;
//
// Threads: any.
#ifndef BYTEPS_CORE_WORKER_ENGINE_ADMISSION_H_
#define BYTEPS_CORE_WORKER_ENGINE_ADMISSION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "core/worker/tensor/operation.h"

namespace byteps {

// INVALID_ARGUMENT, with the tensor: its reduction, root, memory, or what an asynchronous one has not. `size`: ranks of
// the job.
absl::Status CheckSubmission(const Submission& asked, uint32_t size);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_ENGINE_ADMISSION_H_
