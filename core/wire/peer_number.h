// peer_number.h - how a worker numbers the lanes of servers, as the peers of its endpoint.
//
//     spec.local_id = PeerNumber(server_rank, lane)        // a server says so of itself
//     ServerOf(partition.peer)                             // a worker finds the server again
//
// Threads: any.
#ifndef BYTEPS_CORE_WIRE_PEER_NUMBER_H_
#define BYTEPS_CORE_WIRE_PEER_NUMBER_H_

#include <cstdint>

namespace byteps::wire {

// Of one server.
inline constexpr uint32_t kMaxLanes = 64;

// 0 is no peer.
constexpr uint32_t PeerNumber(uint32_t server, uint32_t lane) { return 1 + server * kMaxLanes + lane; }
constexpr uint32_t ServerOf(uint32_t peer) { return (peer - 1) / kMaxLanes; }

}  // namespace byteps::wire

#endif  // BYTEPS_CORE_WIRE_PEER_NUMBER_H_
