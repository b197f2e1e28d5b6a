// pinned_area.h - host memory that a GPU copies from and to: one contiguous area.
//
//     absl::StatusOr<std::unique_ptr<PinnedArea>> area = PinnedArea::Make(gpu, buffers, bytes);
//     area->buffer()      // one of the library's own: transports register it once, peers of the host may map it
//
// Threads: none. Ownership: nothing may be under way from or to it when it is destroyed.
#ifndef BYTEPS_CORE_WORKER_DEVICE_PINNED_AREA_H_
#define BYTEPS_CORE_WORKER_DEVICE_PINNED_AREA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "core/plugin/gpu.h"
#include "core/worker/memory/buffer.h"

namespace byteps {

class PinnedArea {
 public:
  // Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<PinnedArea>> Make(std::shared_ptr<Gpu> gpu,
                                                          std::shared_ptr<BufferTable> buffers, uint64_t bytes);
  ~PinnedArea();
  PinnedArea(const PinnedArea&) = delete;
  PinnedArea& operator=(const PinnedArea&) = delete;

  std::byte* data() const { return buffer_->data(); }
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  // That has pinned it.
  const Gpu& gpu() const { return *gpu_; }

  bool again = false;  // the stock's: its owner has taken it more than once

 private:
  PinnedArea(std::shared_ptr<Gpu> gpu, std::shared_ptr<BufferTable> buffers, std::shared_ptr<Buffer> buffer)
      : gpu_(std::move(gpu)), buffers_(std::move(buffers)), buffer_(std::move(buffer)) {}

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<BufferTable> buffers_;
  const std::shared_ptr<Buffer> buffer_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_PINNED_AREA_H_
