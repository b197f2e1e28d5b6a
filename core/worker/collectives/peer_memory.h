// peer_memory.h - lets the others of a round write into its memory.
//
//     absl::Status status = ShowMemory(round, &links);          // its plan has begun
//
// Registers output and scratch, where the others write into them, and whatever this rank writes from, where the
// transport asks for it; and tells each of the others (READY) where each of its transfers goes. One that the transport
// has lost is not told, which is no error here: the loss, with its cause, comes by PeerLinks::OnPeerDown.
//
// Threads: driven by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_PEER_MEMORY_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_PEER_MEMORY_H_

#include "absl/status/status.h"
#include "core/worker/collectives/peer_links.h"
#include "core/worker/collectives/peer_round.h"

namespace byteps {

absl::Status ShowMemory(PeerRound* round, PeerLinks* links);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_PEER_MEMORY_H_
