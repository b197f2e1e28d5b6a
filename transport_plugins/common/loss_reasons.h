// loss_reasons.h - why peers are down, for as long as the PEER_DOWN that says so may be read.
//
//     LossReasons reasons;
//     reasons.Attach(&event, "took nothing for 3000 ms");   // as it follows "the peer"
//     if (events.empty()) reasons.Forget();                 // at the beginning of poll: all have been taken, and read
//
// Reasons stay where they are while others are attached, and when the whole is swapped or moved.
#ifndef BYTEPS_TRANSPORT_PLUGINS_COMMON_LOSS_REASONS_H_
#define BYTEPS_TRANSPORT_PLUGINS_COMMON_LOSS_REASONS_H_

#include <deque>
#include <string>
#include <utility>

#include "abi/transport.h"

namespace byteps::transports {

class LossReasons {
 public:
  void Attach(bps_event* event, std::string reason) {
    const std::string& kept = reasons_.emplace_back(std::move(reason));
    event->data = kept.data();
    event->size = kept.size();
  }
  void Forget() { reasons_.clear(); }
  void swap(LossReasons& other) { reasons_.swap(other.reasons_); }

 private:
  std::deque<std::string> reasons_;
};

// What a PEER_DOWN says; "": nothing.
inline std::string LossReason(const bps_event& event) {
  return event.size == 0 ? "" : std::string(static_cast<const char*>(event.data), event.size);
}

}  // namespace byteps::transports

#endif  // BYTEPS_TRANSPORT_PLUGINS_COMMON_LOSS_REASONS_H_
