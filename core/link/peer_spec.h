// peer_spec.h - who a peer of an Endpoint is, and where.
#ifndef BYTEPS_CORE_LINK_PEER_SPEC_H_
#define BYTEPS_CORE_LINK_PEER_SPEC_H_

#include <cstdint>
#include <string>

#include "abi/transport.h"

namespace byteps {

// Number of a peer within one Endpoint; never used again.
using PeerId = bps_peer;

struct PeerSpec {
  uint64_t session = 0;
  uint32_t epoch = 0;
  std::string session_nonce;  // of Epoch, part of the proof
  uint32_t own_member = 0, own_lane = 0;
  uint32_t member = 0, lane = 0;
  std::string address;      // transport address bytes
  std::string description;  // for errors: "server 1 (host b, 10.0.0.2, pid 42)"
  // How the peer calls us when it connects: both sides number an endpoint pair alike.
  uint32_t local_id = 0;
  PeerId id = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_LINK_PEER_SPEC_H_
