// block_fold.h - reduces one block of memory that lies in several processes, and writes the result into each.
//
//     BlockFold fold(&transport, members);
//     int32_t code = fold.Fold(reduction, group_sizes, members, own, offset, bytes, stores, &culprit);
//     code = fold.Read(members[root].input, to, offset, bytes);
//
// A server does the same with the memory of its workers, of which it is none:
//
//     code = fold.Serve(reduction, group_sizes, members, offset, bytes, stores, to, &culprit, &begun);
//
// A member's memory is reached in one of three ways: it is our own, or the transport has mapped it into this process,
// or the transport copies from and to it. Copied blocks go through scratch memory that stays in the cache. Mapped
// memory of others is written only while the transport knows of it (BeginWrite): that is what makes its fence.
//
// What was read from mapped memory counts only if the memory was still shown when it had been read: its owner may have
// given up meanwhile (this process was stopped, perhaps), and filled it with something else. A copy checks that by
// itself; a write to an output of the same owner holds the right to its memory until it is done; a mapped input without
// a mapped output is checked afterwards.
//
// Each block of a tensor has one owner, which alone reads it everywhere and then writes it everywhere. All of its bytes
// are read before the first is written, so inputs and outputs may be the same memory.
//
// Threads: none. Errors: that of the transport; `culprit` says with which member.
#ifndef BYTEPS_CORE_LINK_BLOCK_FOLD_H_
#define BYTEPS_CORE_LINK_BLOCK_FOLD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/aligned_memory.h"
#include "core/plugin/transport.h"
#include "core/reduce/reduce.h"

namespace byteps {

// Memory of one member, from the first byte of a tensor on.
struct MemberSpan {
  bps_peer peer = 0;
  std::byte* base = nullptr;  // in this process; nullptr: reached by copies. Of others: to be read only
  bps_remote remote{};        // of others: what the key was exported for, and where the tensor begins in it
};

// What a member has shown of one operation.
struct MemberMemory {
  MemberSpan input;
  MemberSpan output;
};

class BlockFold {
 public:
  // Bytes folded at a time: scratch memory and both copies stay in the second-level cache, and a step of the engine
  // stays short.
  static constexpr size_t kBlockBytes = 128 * 1024;

  // `members`: how many there are at most.
  BlockFold(Transport* transport, size_t members);
  size_t members() const { return inputs_.size(); }

  // Folds bytes [offset, offset + bytes) of all inputs, in the order of `members`, and writes them to all outputs. At
  // most kBlockBytes; `own`: which of the members this process is; `stores`: kStreamed only if no output is an input.
  // BPS_OK, or the transport's code.
  int32_t Fold(const Reduction& reduction, std::span<const uint32_t> group_sizes, std::span<const MemberMemory> members,
               size_t own, uint64_t offset, size_t bytes, Stores stores, size_t* culprit);

  // The same, but the result goes to `to` alone, which may be one of the inputs.
  int32_t Gather(const Reduction& reduction, std::span<const uint32_t> group_sizes,
                 std::span<const MemberMemory> members, uint64_t offset, size_t bytes, std::byte* to, size_t* culprit);

  // For a process that is no member: the result goes to the members' outputs (where one has an output: peer is not 0),
  // and to `to`, if that is not nullptr. `begun` becomes true when an output may have been written to, also if it fails
  // then.
  int32_t Serve(const Reduction& reduction, std::span<const uint32_t> group_sizes,
                std::span<const MemberMemory> members, uint64_t offset, size_t bytes, Stores stores, std::byte* to,
                size_t* culprit, bool* begun);

  // Writes `from` to bytes [offset, offset + bytes) of one output.
  int32_t WriteTo(const MemberSpan& to, const std::byte* from, uint64_t offset, size_t bytes);

  // Writes `from` to bytes [offset, offset + bytes) of all outputs but our own.
  int32_t Spread(std::span<const MemberMemory> members, size_t own, const std::byte* from, uint64_t offset,
                 size_t bytes, size_t* culprit);

  // Copies a member's bytes [offset, offset + bytes) to `to`.
  int32_t Read(const MemberSpan& from, std::byte* to, uint64_t offset, size_t bytes);

 private:
  // BPS_OK: what was read from mapped memory is what was meant.
  int32_t Confirm(const MemberSpan& span);
  int32_t FoldInto(const Reduction& reduction, std::span<const uint32_t> group_sizes,
                   std::span<const MemberMemory> members, size_t own, uint64_t offset, size_t bytes, Stores stores,
                   std::byte* to, size_t* culprit, bool* begun);
  // The inputs' blocks, where they can be read, in inputs_.
  int32_t Collect(std::span<const MemberMemory> members, uint64_t offset, size_t bytes, size_t* culprit);

  Transport* const transport_;
  AlignedMemory scratch_;  // a block for each member, and one for a result that is only copied
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::vector<size_t> writing_;  // whose memory is being written
  std::vector<size_t> copied_;   // who gets a copy
};

}  // namespace byteps

#endif  // BYTEPS_CORE_LINK_BLOCK_FOLD_H_
