#include "core/worker/device/gpu_buffer.h"

#include <algorithm>
#include <utility>

#include "abi/byteps.h"
#include "core/worker/device/pin_buffer.h"

namespace byteps {
namespace {

// In a stream of its own: what the caller has in others does not matter here.
absl::Status FillWithZeros(Gpu* gpu, void* base, size_t size) {
  absl::StatusOr<bps_device_stream> stream = gpu->StreamCreate(0);
  if (!stream.ok()) return stream.status();
  absl::Status status = gpu->Fill(base, 0, size, *stream);
  if (status.ok()) status = gpu->Synchronize(*stream);
  gpu->StreamDestroy(*stream).IgnoreError();
  return status;
}

absl::StatusOr<GpuBuffer> OnGpu(const std::shared_ptr<Gpu>& gpu, BufferTable* buffers, size_t size) {
  const size_t bytes = std::max<size_t>(1, size);
  absl::StatusOr<void*> base = gpu->Allocate(bytes);
  if (!base.ok()) return base.status();
  if (absl::Status status = FillWithZeros(gpu.get(), *base, bytes); !status.ok()) {
    gpu->Release(*base).IgnoreError();
    return status;
  }
  GpuBuffer made;
  made.buffer = Buffer::Of(*base, size);
  buffers->Add(made.buffer);
  made.release = [gpu, base = *base] { gpu->Release(base).IgnoreError(); };
  return made;
}

absl::StatusOr<GpuBuffer> OnHost(const std::shared_ptr<Gpu>& gpu, BufferTable* buffers, size_t size) {
  // A transport may exchange the pages of shared memory beneath the pin, and the GPU would go on with the old ones.
  absl::StatusOr<std::shared_ptr<Buffer>> buffer = buffers->Allocate(size, true);
  if (!buffer.ok()) return buffer.status();
  GpuBuffer made;
  made.buffer = *buffer;
  made.release = [] {};
  if (size == 0) return made;
  if (absl::Status status = PinBuffer(gpu.get(), *made.buffer); !status.ok()) {
    buffers->Free(made.buffer.get()).IgnoreError();
    return status;
  }
  // A lost context has let go of it already. The buffer is kept: registrations by transports may outlive it.
  made.release = [gpu, buffer = made.buffer] { gpu->UnregisterHost(buffer->data()).IgnoreError(); };
  return made;
}

}  // namespace

absl::StatusOr<GpuBuffer> MakeGpuBuffer(Gpus* gpus, BufferTable* buffers, const Device& device, size_t size) {
  absl::StatusOr<Gpus::Opened> opened = gpus->Get(device.id);
  if (!opened.ok()) return opened.status();
  return device.type == BPS_CUDA ? OnGpu(opened->gpu, buffers, size) : OnHost(opened->gpu, buffers, size);
}

}  // namespace byteps
