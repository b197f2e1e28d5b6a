#include "core/worker/device/gpu_events.h"

namespace byteps {

GpuEvent::~GpuEvent() {
  if (event_ != nullptr) pool_->GiveBack(event_);
}

absl::Status GpuEvent::Record(bps_device_stream stream) { return pool_->gpu().EventRecord(event_, stream); }

absl::StatusOr<bool> GpuEvent::Query() const { return pool_->gpu().EventQuery(event_); }

absl::Status GpuEvent::Delay(bps_device_stream stream) const { return pool_->gpu().StreamWait(stream, event_); }

GpuEvents::~GpuEvents() {
  for (bps_device_event* event : spare_) gpu_->EventDestroy(event);
}

absl::StatusOr<GpuEvent> GpuEvents::Take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!spare_.empty()) {
      bps_device_event* event = spare_.back();
      spare_.pop_back();
      return GpuEvent(shared_from_this(), event);
    }
  }
  absl::StatusOr<bps_device_event*> event = gpu_->EventCreate();
  if (!event.ok()) return event.status();
  return GpuEvent(shared_from_this(), *event);
}

void GpuEvents::GiveBack(bps_device_event* event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(event);
}

}  // namespace byteps
