// event_queue.h - the events that wait for poll(). Allocates nothing once it has grown.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_EVENT_QUEUE_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_EVENT_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "abi/transport.h"

namespace byteps::shm {

class EventQueue {
 public:
  size_t size() const { return events_.size() - taken_; }
  bool empty() const { return size() == 0; }

  bps_event& Add(uint32_t type, bps_peer peer, int32_t code = BPS_OK) {
    bps_event& event = events_.emplace_back();
    event.type = type;
    event.peer = peer;
    event.code = code;
    return event;
  }

  size_t Take(bps_event* out, size_t capacity) {
    const size_t count = std::min(capacity, size());
    std::copy_n(events_.begin() + static_cast<ptrdiff_t>(taken_), count, out);
    taken_ += count;
    if (taken_ == events_.size()) {
      events_.clear();
      taken_ = 0;
    } else if (taken_ >= kCompactAt) {
      events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(taken_));
      taken_ = 0;
    }
    return count;
  }

 private:
  static constexpr size_t kCompactAt = 1024;
  std::vector<bps_event> events_;
  size_t taken_ = 0;
};

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_EVENT_QUEUE_H_
