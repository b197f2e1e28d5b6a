// local_round.h - one round of a tensor among the workers of a host: what each has told, and how far it is.
//
// The states (LocalState):
//
//     awaited --> gathering --> working --> finishing --> (over: forgotten)
//        |            \____________\___________\_____> releasing --> (over: forgotten)
//        \--> refused
//
//   awaited    others have offered; not submitted here yet
//   gathering  begun here; waits for its own parts and for the offers of the others
//   working    all have offered; this member does its share
//   finishing  its share is done; waits for those of the others
//   releasing  failed; waits until no member touches its memory any more
//   refused    failed before it was submitted here; its submission fails at once
//
// Every member ends its part of a round with one end record: DONE or GIVE_UP. After it the member touches no memory of
// others. So memory may be given back to its user when the end records of all others are there, whatever became of the
// round.
//
// Threads: none.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROUND_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROUND_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/byte_buffer.h"
#include "core/link/block_fold.h"
#include "core/plugin/region.h"
#include "core/reduce/reduce.h"
#include "core/wire/wire.h"
#include "core/worker/memory/buffer_regions.h"
#include "core/worker/memory/staging_pool.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/part_owners.h"
#include "core/worker/tensor/payload.h"

namespace byteps {

// A stretch of bytes, and what is to be done with it.
struct LocalPiece {
  enum class Kind : uint8_t {
    kReduce,  // all sources, folded into all targets
    kFold,    // all sources, folded into our target: on its way to the next stage
    kSpread,  // our target, into all others
    kFetch,   // the root's source, into our target
    kShow,    // our source, into the memory that is shown in its place
    kTake,    // what came there, into our target
  };
  Kind kind = Kind::kReduce;
  uint64_t next = 0;
  uint64_t end = 0;
};

// How a host's contribution is folded: what is averaged is divided at the end, by the servers.
Reduction PartialReduction(uint32_t dtype, int32_t reduction);

enum class LocalState : uint8_t { kAwaited, kGathering, kWorking, kFinishing, kReleasing, kRefused };

// "awaited", ...
const char* LocalStateName(LocalState state);
// Is there an arrow between these two?
bool LocalMayMove(LocalState from, LocalState to);

// What one member has told in a round.
struct LocalReport {
  using allocator_type = std::pmr::polymorphic_allocator<>;
  explicit LocalReport(allocator_type memory = {}) : shape(memory), payload(memory) {}

  bool offered = false;
  bool ended = false;  // its end record is there
  wire::OfferBody offer{};
  ByteBuffer shape;                      // extents, for errors
  ByteBuffer payload;                    // inline; or the result of a small tensor, with its DONE
  uint8_t keys[2 * wire::kMaxKey] = {};  // in place: of input and output
};

class LocalRound {
 public:
  LocalRound(uint64_t name_id, uint64_t number, size_t members, std::pmr::memory_resource* resource)
      : name_id_(name_id), number_(number), reports(members, resource), memory(members, resource), spread(resource) {}
  LocalRound(const LocalRound&) = delete;
  LocalRound& operator=(const LocalRound&) = delete;

  uint64_t name_id() const { return name_id_; }
  uint64_t number() const { return number_; }
  LocalState state() const { return state_; }
  // Throws std::logic_error if there is no such arrow: a defect of this library.
  void Move(LocalState to);

  bool AllOffered() const;
  bool AllEnded() const;
  // "round 3 of name 7 working: 4 of 4 offered, 1 of 4 ended"
  std::string Describe() const;

 private:
  const uint64_t name_id_;
  const uint64_t number_;
  LocalState state_ = LocalState::kAwaited;

 public:
  // Of the tensor, in what represents it here.
  uint64_t bytes() const { return std::max(areas.source.bytes, areas.target.bytes); }
  uint64_t elements() const { return areas.source.elements; }
  uint32_t dtype() const { return areas.source.dtype; }

  Operation* operation = nullptr;         // once submitted here
  Areas areas;                            // likewise
  uint32_t awaited_parts = 0;             // not pushed to this stage yet
  std::pmr::vector<LocalReport> reports;  // by index in the set, our own included
  std::pmr::vector<MemberMemory> memory;  // where the bytes of all are, while working
  absl::Status failure;                   // why it is being given up, as the others are told
  absl::Status loss;                      // why it will be, unless a member tells a better cause
  Time fail_at = kNever;                  // until then
  Region input;                           // our registrations, while others may use them
  Region output;
  Staging staging;                   // what is shown in their place, where the others cannot reach our memory
  BufferRegions::Place shown_input;  // what the others have keys to, whatever registered it
  BufferRegions::Place shown_output;
  bool shown = false;  // others may touch our memory
  Stores stores = Stores::kCached;
  size_t root = 0;      // of a broadcast, if it is one of the members
  Time release_at = 0;  // when the others are not waited for any longer

  // What this member does. One piece at a time: `task` in the scheduler, 0 if there is none.
  uint64_t task = 0;
  LocalPiece piece;
  Slice to_show;                 // bytes of the source that are not in the staging memory yet
  Slice slice;                   // bytes that are reduced or fetched; what of them has no piece yet
  std::array<Slice, 2> to_take;  // bytes of the result that are in the staging memory alone
  // Behind it is another stage:
  bool beyond = false;               // which has the operation
  PartRange parts;                   // that go through this member
  uint32_t next_part = 0;            // not folded yet
  uint32_t to_spread = 0;            // not in all targets yet
  std::pmr::deque<uint32_t> spread;  // back from there
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROUND_H_
