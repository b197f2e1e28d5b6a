// windows.h - the landing slots that a lane lends to its workers, and what is in them.
//
//     Windows windows(&endpoint, &pool);
//     windows.Open(peer, slots, slot_bytes);                    // when the peer is ready: LEASE
//     if (windows.Expects(peer, immediate)) ...                 // a PUSH names it
//     if (windows.Announce(immediate, round, rank)) ...         // true: the bytes are there too
//     if (auto use = windows.Land(immediate)) ...               // the bytes, after the PUSH
//     windows.Return(immediate);                                // used up: RETURN
//     windows.Abandon(immediate);                               // the same, as soon as nothing lands in it any more
//     windows.Close(peer);                                      // behind the fence
//
// A slot is *held* from the moment its bytes wait in it for others until it is returned. A worker whose slots are all
// held cannot go on. For a moment that is what it should do: the others are about to come, and nothing need be copied.
// After it, Stuck names the slots whose bytes should be moved elsewhere, so that a worker does not wait for the
// contributions of others. Other workers may have something more urgent for seconds, and a few free slots do not take a
// worker far: where more than half of its slots are held, Stuck names those that have been held for long, too.
//
// Threads: none.
#ifndef BYTEPS_SERVER_REDUCER_WINDOWS_H_
#define BYTEPS_SERVER_REDUCER_WINDOWS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/link/endpoint.h"
#include "core/wire/landing_table.h"
#include "server/reducer/pool.h"

namespace byteps {

class Round;

class Windows {
 public:
  // Whose bytes are in a slot.
  struct Use {
    Round* round = nullptr;
    uint32_t rank = 0;
  };

  struct StuckUse {
    Use use;
    bool none_left;  // to its worker; else some are, and there is no need to lose what is in this one
  };

  Windows(Endpoint* endpoint, Pool* pool) : endpoint_(endpoint), pool_(pool) {}

  absl::Status Open(PeerId peer, uint32_t slots, uint64_t slot_bytes);
  // Frees the peer's slots, whatever is in them. Rounds must not use them any more.
  void Close(PeerId peer);

  // Is this the immediate of a slot lent to `peer` that no PUSH has named yet?
  bool Expects(PeerId peer, uint32_t immediate) const;
  bool Announce(uint32_t immediate, Round* round, uint32_t rank);
  // Nothing if the PUSH has not come yet, or no member wants the bytes any more.
  std::optional<Use> Land(uint32_t immediate);
  std::span<std::byte> Memory(uint32_t immediate) const;

  // The bytes stay where they are until Return.
  void Hold(Time now, uint32_t immediate);
  // Would holding one more slot leave the peer none?
  bool Last(PeerId peer) const;
  // What is in the slots of peers that have had none for kPatience, and what has been there for kLong where more than
  // half are held.
  const std::vector<StuckUse>& Stuck(Time now);
  // When Stuck will have something; kNever: not as things are.
  Time NextTimer() const { return next_stuck_; }

  void Return(uint32_t immediate);
  void Abandon(uint32_t immediate);

  uint64_t stale() const { return table_.stale(); }

 private:
  // Long against the time between two contributions of workers in step; short enough for gigabytes per second through
  // few slots when they are not.
  static constexpr Time kPatience = 500'000;
  // Long against what workers in step are apart at 200 Mbit/s.
  static constexpr Time kLong = 10'000'000;

  struct Window {
    PeerId peer = 0;
    uint32_t first_slot = 0;
    uint32_t slots = 0;
    uint64_t slot_bytes = 0;
    uint32_t held = 0;
    Time full_since = kNever;  // all slots are held
    RegisteredMemory memory;
  };
  struct Slot {
    Window* window = nullptr;
    Use use;
    bool landed = false;
    bool held = false;
    Time held_since = 0;
  };
  Slot& At(uint32_t immediate) { return slots_[wire::ImmediateSlot(immediate)]; }

  Endpoint* const endpoint_;
  Pool* const pool_;
  LandingTable table_;
  std::vector<StuckUse> stuck_;  // as told last
  std::vector<Slot> slots_;
  std::map<PeerId, std::unique_ptr<Window>> windows_;  // ordered: a simulated run must repeat itself
  Time next_stuck_ = kNever;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_WINDOWS_H_
