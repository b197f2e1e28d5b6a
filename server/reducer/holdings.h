// holdings.h - contributions that have come and are not folded yet: in the slots where they landed, or in blocks of the
// pool.
//
//     holdings.Store(now, round, index, payload);      // what cannot be used now
//     holdings.FoldPrefix(round);                      // what is next in rank order goes into the accumulator
//     holdings.FreeStuckSlots(now);                    // of workers that have had few left for too long
//     holdings.Clear(round, index, state);             // it is not needed any more
//
// A contribution is moved out of its slot only if its worker needs the slot: into the round's accumulator, if it is
// this rank's turn, into a block, or, without memory, nowhere: it is dropped, and has to be asked for.
//
// Threads: those of its owner.
#ifndef BYTEPS_SERVER_REDUCER_HOLDINGS_H_
#define BYTEPS_SERVER_REDUCER_HOLDINGS_H_

#include <cstddef>
#include <cstdint>

#include "core/base/time.h"
#include "server/reducer/pool.h"
#include "server/reducer/round.h"
#include "server/reducer/windows.h"

namespace byteps {

class Holdings {
 public:
  Holdings(Windows* windows, Pool* pool) : windows_(windows), pool_(pool) {}

  // Keeps a contribution that cannot be used now: at `payload` for the length of this call, or, if that is null, in its
  // slot.
  void Store(Time now, Round* round, uint32_t index, const std::byte* payload);
  // True if there were any.
  bool FreeStuckSlots(Time now);
  // Where a contribution lies that waits here.
  const std::byte* PayloadOf(const Round& round, uint32_t index) const;
  // Adds it to the accumulator, from `payload` or, if that is null, from where it waits.
  void Fold(Round* round, uint32_t index, const std::byte* payload);
  void FoldPrefix(Round* round);
  // Gives back what holds the contribution.
  void Clear(Round* round, uint32_t index, ContributionState state);

  uint64_t parked() const { return parked_; }
  uint64_t dropped() const { return dropped_; }

 private:
  // Takes a contribution out of its slot, or out of a message.
  void MoveOut(Round* round, uint32_t index, const std::byte* payload);

  Windows* const windows_;
  Pool* const pool_;
  uint64_t parked_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_HOLDINGS_H_
