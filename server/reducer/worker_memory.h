// worker_memory.h - contributions that stay with their workers: read when they are folded, their results written where
// they are wanted.
//
//     WorkerMemory::Result result = memory.Fold(*round, payloads, to);  // all at once, block by block
//     WorkerMemory::Result result = memory.Read(*round, index);         // one, for an accumulator: memory.read()
//     WorkerMemory::Result result = memory.Write(*round, block);        // and what came of it
//
// A worker's memory is touched only within these calls: a worker that has got ERROR, or RESULT, has it for itself.
//
// What the transport maps into this process (the library's own buffers, abi/transport.h, reg_shared) is folded from
// where it is and into where it is wanted, without a copy; any other memory is copied from and to, block by block. Both
// in one round, too: the bits are the same. Mapped memory may have been announced before it is here:
// BPS_TRANSPORT_AGAIN says so, and that nothing has happened. Likewise BPS_UNIMPLEMENTED: the system does not let us at
// it, and no member's output was touched. So whether an output can be copied to is tried before the first is written,
// unless its owner's input was copied already.
//
// Threads: those of its owner. Destroyed before the transport.
#ifndef BYTEPS_SERVER_REDUCER_WORKER_MEMORY_H_
#define BYTEPS_SERVER_REDUCER_WORKER_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "abi/byteps.h"
#include "core/base/aligned_memory.h"
#include "core/link/block_fold.h"
#include "core/plugin/transport.h"
#include "server/reducer/round.h"

namespace byteps {

class WorkerMemory {
 public:
  struct Result {
    int32_t code = BPS_OK;
    uint32_t index = 0;   // whose memory it was that could not be reached
    bool begun = false;   // something was written to the outputs
    uint32_t mapped = 0;  // contributions that were folded from where they were
  };

  explicit WorkerMemory(Transport* transport) : transport_(transport) {}

  // Folds all contributions of the round. `payloads`: of those that are folded, in order, where each is; nullptr if it
  // is at its worker. The result goes to the outputs of those that have it there, unless the round is a broadcast or
  // `outputs` is false, and to `to`, if that is not nullptr.
  Result Fold(const Round& round, std::span<const void* const> payloads, bool outputs, std::byte* to);

  // Is everything here that was announced in place, input and output? BPS_TRANSPORT_AGAIN: not yet.
  Result Reach(const Round& round);

  // One contribution, which is at its worker, whole, into read().
  Result Read(const Round& round, uint32_t index);
  const std::byte* read() const { return read_.data(); }

  // `from`, the result of the round, to all outputs of those whose contributions were in place.
  Result Write(const Round& round, const std::byte* from);

 private:
  static MemberSpan SpanOf(const Round& round, uint32_t index, const wire::MemoryRef& memory);
  // Those of members_ that can be mapped, are, as long as this lives.
  class Mapped;
  int32_t Map(const Round& round, MemberSpan* input);
  int32_t Await(const Round& round, const MemberSpan& output, bool copies);
  BlockFold* FoldOf(size_t members);

  Transport* const transport_;
  std::unique_ptr<BlockFold> fold_;
  std::vector<MemberMemory> members_;
  AlignedMemory read_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_WORKER_MEMORY_H_
