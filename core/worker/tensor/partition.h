// partition.h - how a tensor is cut, and the way of one of its pieces.
//
//     absl::StatusOr<Cut> cut = Cut::Make(assignment, elements);    // the coordinator's answer, checked
//     for (uint32_t part = 0; part < cut->parts(); ++part) cut->place(part) ...
//
//     Partition partition;
//     partition.Move(PartitionState::kQueued);
//
// The states:
//
//   idle --> queued --> held --> posted --> pushed --> home
//                \________________/\__________________/
//   queued   the scheduler plugin has it
//   held     the scheduler chose it, but the transport takes nothing more just now
//   posted   handed to the transport; the local memory is still in use
//   pushed   its bytes have left; the round is with the server
//   home     its part of the output holds the result
//   failed   given up
//
// A server that had no memory for it sends it back from posted or pushed to queued (SEND_AGAIN).
//
// Threads: none; both belong to whoever drives the engine. A Cut is immutable.
#ifndef BYTEPS_CORE_WORKER_TENSOR_PARTITION_H_
#define BYTEPS_CORE_WORKER_TENSOR_PARTITION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"

namespace byteps {

// The server lane that reduces a partition.
struct Place {
  uint32_t server = 0;  // rank
  uint32_t lane = 0;
  bool operator==(const Place&) const = default;
};

// How a worker's endpoint numbers the server lanes.
inline constexpr uint32_t kMaxLanes = 64;
constexpr PeerId PeerOf(Place place) { return 1 + place.server * kMaxLanes + place.lane; }

class Cut {
 public:
  // Checks that the parts of `assignment` cover a tensor of `elements` exactly.
  static absl::StatusOr<Cut> Make(const control::Assignment& assignment, uint64_t elements);

  uint64_t key() const { return key_; }
  // From this round on another cut holds, on all ranks; 0: never.
  uint64_t next_cut() const { return next_cut_; }
  uint32_t parts() const { return static_cast<uint32_t>(places_.size()); }
  Place place(uint32_t part) const { return places_[part]; }
  // Each so many consecutive parts, counted from the first one, lie on as many lanes (the last ones may be fewer); 1:
  // the parts lie otherwise.
  uint32_t row() const { return row_; }
  uint64_t first(uint32_t part) const { return part * part_elements_; }
  uint64_t count(uint32_t part) const;

 private:
  uint64_t key_ = 0;
  uint64_t next_cut_ = 0;
  uint64_t elements_ = 0;
  uint64_t part_elements_ = 1;
  std::vector<Place> places_;
  uint32_t row_ = 1;
};

enum class PartitionState : uint8_t { kIdle, kQueued, kHeld, kPosted, kPushed, kHome, kFailed };

// "queued", ...
const char* PartitionStateName(PartitionState state);
// Is there an arrow between these two?
bool PartitionMayMove(PartitionState from, PartitionState to);

struct Operation;

// One piece of an operation in flight.
struct Partition {
  Operation* operation = nullptr;
  uint32_t part = 0;
  PeerId peer = 0;
  uint64_t first = 0;  // element
  uint64_t elements = 0;
  uint64_t push_bytes = 0;    // payload to the server; 0 where the sender has none (broadcast, not the root)
  uint64_t result_bytes = 0;  // payload of the answer; 0 on the root of a broadcast

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

#endif  // BYTEPS_CORE_WORKER_TENSOR_PARTITION_H_
