// event.h - makes a bps_event.
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_EVENT_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_EVENT_H_

#include <cstdint>

#include "abi/transport.h"

namespace byteps::fabric {

inline bps_event Event(uint32_t type, bps_peer peer, int32_t code = BPS_OK, uint64_t user = 0) {
  bps_event event{};
  event.type = type;
  event.peer = peer;
  event.code = code;
  event.user = user;
  return event;
}

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_EVENT_H_
