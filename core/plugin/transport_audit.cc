#include "core/plugin/transport_audit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

const char* NameOf(uint32_t type) {
  switch (type) {
    case BPS_EVENT_SENT:
      return "SENT";
    case BPS_EVENT_WRITTEN:
      return "WRITTEN";
    case BPS_EVENT_READ:
      return "READ";
    default:
      return "?";
  }
}

}  // namespace

void TransportAudit::Break(std::string what) {
  if (why_.empty()) why_ = absl::StrCat("was given up: ", title_, " ", what, ". It is a defect of the plugin");
}

bool TransportAudit::OnDisconnect(bps_peer peer) {
  peers_.erase(peer);
  if (!broken()) return false;
  if (std::find(leaving_.begin(), leaving_.end(), peer) == leaving_.end()) leaving_.push_back(peer);
  return true;
}

bool TransportAudit::CheckEvent(const bps_event& event) {
  switch (event.type) {
    case BPS_EVENT_SENT:
    case BPS_EVENT_WRITTEN:
    case BPS_EVENT_READ: {
      const auto found = operations_.find({event.type, event.user});
      if (found == operations_.end()) {
        Break(absl::StrCat("reported ", NameOf(event.type), " of the operation ", event.user,
                           ", which it was not given or which had ended"));
        return false;
      }
      if (--found->second == 0) operations_.erase(found);
      return true;
    }
    case BPS_EVENT_MESSAGE:
    case BPS_EVENT_IMMEDIATE:
    case BPS_EVENT_PEER_DOWN:
    case BPS_EVENT_DISCONNECTED:
      return true;
    default:
      Break(absl::StrCat("reported an event of type ", event.type, ", which version 1.", BPS_TRANSPORT_ABI_MINOR,
                         " does not have"));
      return false;
  }
}

size_t TransportAudit::Check(bps_event* events, size_t answered, size_t capacity) {
  size_t count = 0;
  if (!broken()) {
    if (answered <= capacity) {
      while (count < answered && CheckEvent(events[count])) ++count;
      if (count == answered) return count;
    } else {
      Break(absl::StrCat("returned ", answered, " events from poll, with room for ", capacity));
    }
  }
  // What came before the first wrong event stands.
  while (count < capacity && !peers_.empty()) {
    bps_event down{};
    down.type = BPS_EVENT_PEER_DOWN;
    down.code = BPS_INTERNAL;
    down.peer = *peers_.begin();
    down.data = why_.data();
    down.size = why_.size();
    peers_.erase(peers_.begin());
    events[count++] = down;
  }
  while (count < capacity && !leaving_.empty()) {
    bps_event gone{};
    gone.type = BPS_EVENT_DISCONNECTED;
    gone.peer = leaving_.back();
    leaving_.pop_back();
    events[count++] = gone;
  }
  return count;
}

}  // namespace byteps
