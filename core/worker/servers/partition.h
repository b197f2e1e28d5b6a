// partition.h - the way of one part of a tensor to its server and back.
//
//     Partition partition;
//     partition.Move(PartitionState::kQueued);
//
// The states:
//
//   idle --> queued --> held --> posted --> pushed --> home
//                \________________/\__________________/
//   idle     its payload is not ready yet, or another worker of this host pushes it
//   queued   the scheduler plugin has it
//   held     the scheduler chose it, but the transport takes nothing more just now
//   posted   handed to the transport; the local memory is still in use
//   pushed   its bytes have left; the round is with the server
//   home     the result is where it was wanted
//   failed   given up
//
// A server that had no memory for it sends it back from posted or pushed to queued (SEND_AGAIN).
//
// Threads: none; driven by the thread that drives the servers stage.
#ifndef BYTEPS_CORE_WORKER_SERVERS_PARTITION_H_
#define BYTEPS_CORE_WORKER_SERVERS_PARTITION_H_

#include <cstdint>
#include <optional>

#include "core/base/time.h"
#include "core/link/endpoint.h"
#include "core/worker/tensor/payload.h"

namespace byteps {

enum class PartitionState : uint8_t { kIdle, kQueued, kHeld, kPosted, kPushed, kHome, kFailed };

// "queued", ...
const char* PartitionStateName(PartitionState state);
// Is there an arrow between these two?
bool PartitionMayMove(PartitionState from, PartitionState to);

struct Transfer;

struct Partition {
  Transfer* transfer = nullptr;
  uint32_t part = 0;
  PeerId peer = 0;
  uint64_t first = 0;  // element of the tensor
  Payload source;      // what the server gets; no bytes where this worker has none (broadcast, not the root)
  Payload target;      // where its answer belongs; no bytes on the root of a broadcast

  uint64_t task = 0;                         // its id in the scheduler while it is queued, held, posted or pushed
  bool sent = false;                         // the scheduler has its credit back
  Time posted_at = 0;                        // when it left for the server, last
  std::optional<uint32_t> result_immediate;  // under which the result may be written straight into the output
  bool in_place = false;                     // the server may read the input where it is
  std::optional<uint32_t> checksum;          // of the result, as its RESULT has told

  // May the server still touch its memory?
  bool exposed() const { return result_immediate.has_value() || in_place; }

  PartitionState state() const { return state_; }
  // Throws std::logic_error if there is no such arrow: a defect of this library.
  void Move(PartitionState to);

  // Is an answer of the server awaited?
  bool away() const { return state_ == PartitionState::kPosted || state_ == PartitionState::kPushed; }

 private:
  PartitionState state_ = PartitionState::kIdle;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_PARTITION_H_
