// pin_buffer.h - pins a buffer of the library for GPUs: its pages stay where they are, near the GPU, also when the
// process forks.
//
//     RETURN_IF_ERROR(PinBuffer(gpu.get(), *buffer));
//     ...
//     gpu->UnregisterHost(buffer->data());          // before the buffer goes
//
// fork(). A write to private memory that a forked child shares moves the writer to a new page; the pin, and the GPU's
//         copies, stay with the old one (kernels before 5.12, and drivers that pin in the old way). So a child of a
//         data loader would take the pages from under the GPU. Private memory that is pinned is therefore not there in
//         children, as memory of cuMemHostAlloc is not: a touch is SIGSEGV. A memory file is mapped MAP_SHARED: parent
//         and child write to the same pages, and nothing moves.
//
// Threads: any. Errors: RESOURCE_EXHAUSTED; BPS_DATA_LOSS of a lost context.
#ifndef BYTEPS_CORE_WORKER_DEVICE_PIN_BUFFER_H_
#define BYTEPS_CORE_WORKER_DEVICE_PIN_BUFFER_H_

#include "absl/status/status.h"
#include "core/plugin/gpu.h"
#include "core/worker/memory/buffer.h"

namespace byteps {

// `buffer` has at least one byte.
absl::Status PinBuffer(Gpu* gpu, const Buffer& buffer);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_PIN_BUFFER_H_
