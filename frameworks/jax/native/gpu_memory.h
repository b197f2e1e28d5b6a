// gpu_memory.h - what a handler asks of the NVIDIA driver: whose memory an address is, and what small operands hold.
//
// The shared object is built without CUDA. The first call finds the driver, libcuda.so.1, which XLA has loaded.
//
// Threads: any. The functions use the GPU's context for the length of the call, and leave that of the thread.
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_GPU_MEMORY_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_GPU_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace byteps::jax {

// The number of the GPU, as CUDA counts in this process, whose memory `address` is. `stream`: of that GPU.
xla::ffi::ErrorOr<int32_t> GpuOf(void* stream, const void* address);

// Copies `bytes` bytes of the GPU's memory at `from` to the host, behind what the stream holds. The host waits for it.
xla::ffi::Error ReadGpuMemory(void* stream, const void* from, size_t bytes, void* to);

}  // namespace byteps::jax

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_GPU_MEMORY_H_
