// gpu_buffer.h - memory that GPUs copy from and to, for callers: pinned memory of the host, and memory of a GPU.
//
//     absl::StatusOr<GpuBuffer> made = MakeGpuBuffer(gpus, buffers, {BPS_CUDA, 0}, bytes);
//     made->buffer->data()                   // zeros
//     if (buffers->Free(made->buffer.get()).ok()) made->release();
//
// Threads: any. Ownership: `release` keeps the GPU alive, and gives the memory back to it; called once, when the table
// has let go of the buffer.
// Errors: those of Gpus::Get; RESOURCE_EXHAUSTED; BPS_DATA_LOSS of a lost context.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPU_BUFFER_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPU_BUFFER_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/worker/device/gpus.h"
#include "core/worker/memory/buffer.h"
#include "core/worker/tensor/payload.h"

namespace byteps {

struct GpuBuffer {
  std::shared_ptr<Buffer> buffer;
  std::function<void()> release;
};

absl::StatusOr<GpuBuffer> MakeGpuBuffer(Gpus* gpus, BufferTable* buffers, const Device& device, size_t size);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPU_BUFFER_H_
