// local_memory.h - a round's memory: what of ours the others are shown, and where theirs is.
//
//     LocalMemory memory(&transport, &neighbours, &role);
//     memory.Show(round);                            // before the offer: registers source and target; then, by pieces:
//     ... copies round->to_show of the source into round->staging
//     if (memory.Reach(round, &error)) ...           // all have offered: round->memory says where their bytes are
//     memory.LetGo(round);                           // theirs is not used any more
//     memory.ListToTake(round);                      // nor ours by them: then, by pieces:
//     ... copies round->to_take of round->staging into the target
//     memory.Finish(round, ok);
//     memory.TakeAway(round);                        // or: they may not use it any more (unreg is the fence)
//
// The library's own buffers stay registered until they are freed, and the others map them. Any other memory is
// registered for the operation, or still is from an earlier one (core/worker/tensor/kept_regions.h), and they copy from
// and to it. Where the system does not let them (neighbours.staged()), they are shown a copy in memory of the
// transport's.
//
// Threads: none; driven by the thread that drives the local stage.
// Ownership: transport, neighbours and role outlive it; registrations belong to the round while it lasts.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_MEMORY_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_MEMORY_H_

#include <cstddef>

#include "absl/status/status.h"
#include "core/plugin/transport.h"
#include "core/worker/local/local_role.h"
#include "core/worker/local/local_round.h"
#include "core/worker/local/neighbours.h"
#include "core/worker/memory/buffer_regions.h"
#include "core/worker/memory/staging_pool.h"
#include "core/worker/tensor/kept_regions.h"

namespace byteps {

class LocalMemory {
 public:
  LocalMemory(Transport* transport, const Neighbours* neighbours, const LocalRole* role);

  // Ours.
  absl::Status Show(LocalRound* round);
  // No member touches it any more, and there is a result: which bytes of it are in memory that was shown in place of
  // the output. False: none.
  bool ListToTake(LocalRound* round) const;
  // No member touches it any more, and no piece of it is under way. `result`: there is one.
  void Finish(LocalRound* round, bool result);
  void TakeAway(LocalRound* round);
  void DropFreedBuffers() { buffers_.DropFreed(); }

  // Theirs. False: not yet, or not at all: then `error` says so.
  bool Reach(LocalRound* round, absl::Status* error);
  void LetGo(LocalRound* round);

 private:
  bool MapSpan(MemberSpan* span, size_t bytes);

  Transport* const transport_;
  const Neighbours* const neighbours_;
  const LocalRole* const role_;
  StagingPool staging_;
  BufferRegions buffers_;
  KeptRegions kept_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_MEMORY_H_
