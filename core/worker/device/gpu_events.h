// gpu_events.h - events of one GPU, used again and again; and one of them, as long as it is needed.
//
//     absl::StatusOr<GpuEvent> ready = events.Take();
//     status = ready->Record(stream);
//     absl::StatusOr<bool> done = ready->Query();
//
// An event belongs to one purpose of one operation: it goes back when the last who may wait for it has let go of it, so
// that a wait is never for a record of another user.
//
// Threads: any. Ownership: events keep their pool alive.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPU_EVENTS_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPU_EVENTS_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "abi/device.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/gpu.h"

namespace byteps {

class GpuEvents;

// Empty or one event. Move-only.
class GpuEvent {
 public:
  GpuEvent() = default;
  GpuEvent(std::shared_ptr<GpuEvents> pool, bps_device_event* event) : pool_(std::move(pool)), event_(event) {}
  GpuEvent(GpuEvent&& other) noexcept : pool_(std::move(other.pool_)), event_(std::exchange(other.event_, nullptr)) {}
  GpuEvent& operator=(GpuEvent&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~GpuEvent();

  explicit operator bool() const { return event_ != nullptr; }
  absl::Status Record(bps_device_stream stream);
  absl::StatusOr<bool> Query() const;
  // Makes `stream` wait for what was recorded.
  absl::Status Delay(bps_device_stream stream) const;

 private:
  std::shared_ptr<GpuEvents> pool_;
  bps_device_event* event_ = nullptr;
};

class GpuEvents : public std::enable_shared_from_this<GpuEvents> {
 public:
  explicit GpuEvents(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  GpuEvents(const GpuEvents&) = delete;
  GpuEvents& operator=(const GpuEvents&) = delete;
  ~GpuEvents();

  absl::StatusOr<GpuEvent> Take();
  Gpu& gpu() const { return *gpu_; }

 private:
  friend class GpuEvent;
  void GiveBack(bps_device_event* event);

  const std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  std::vector<bps_device_event*> spare_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPU_EVENTS_H_
