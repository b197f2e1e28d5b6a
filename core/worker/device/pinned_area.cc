#include "core/worker/device/pinned_area.h"

#include "core/worker/device/pin_buffer.h"

namespace byteps {

absl::StatusOr<std::unique_ptr<PinnedArea>> PinnedArea::Make(std::shared_ptr<Gpu> gpu,
                                                             std::shared_ptr<BufferTable> buffers, uint64_t bytes) {
  absl::StatusOr<std::shared_ptr<Buffer>> buffer = buffers->Allocate(bytes);
  if (!buffer.ok()) return buffer.status();
  if (absl::Status status = PinBuffer(gpu.get(), **buffer); !status.ok()) {
    buffers->Free(buffer->get()).IgnoreError();
    return status;
  }
  return std::unique_ptr<PinnedArea>(new PinnedArea(std::move(gpu), std::move(buffers), *std::move(buffer)));
}

PinnedArea::~PinnedArea() {
  // A lost context has let go of it already.
  gpu_->UnregisterHost(buffer_->data()).IgnoreError();
  buffers_->Free(buffer_.get()).IgnoreError();
}

}  // namespace byteps
