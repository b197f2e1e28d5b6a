#include "core/block_fold.h"

#include <cstring>

#include "abi/byteps.h"
#include "core/dtype.h"

namespace byteps {

BlockFold::BlockFold(Transport* transport, size_t members)
    : transport_(transport), scratch_((members + 1) * kBlockBytes), inputs_(members) {}

int32_t BlockFold::Read(const MemberSpan& from, std::byte* to, uint64_t offset, size_t bytes) {
  if (from.base != nullptr) {
    std::memcpy(to, from.base + offset, bytes);
    return BPS_OK;
  }
  bps_remote remote = from.remote;
  remote.offset += offset;
  return transport_->CopyFrom(from.peer, remote, to, bytes);
}

int32_t BlockFold::Write(const MemberSpan& to, const std::byte* from, uint64_t offset, size_t bytes) {
  if (to.base != nullptr) {
    if (to.base + offset != from) std::memcpy(to.base + offset, from, bytes);
    return BPS_OK;
  }
  bps_remote remote = to.remote;
  remote.offset += offset;
  return transport_->CopyTo(to.peer, remote, from, bytes);
}

int32_t BlockFold::Fold(const Reduction& reduction, std::span<const uint32_t> group_sizes,
                        std::span<const MemberMemory> members, size_t own, uint64_t offset, size_t bytes,
                        size_t* culprit) {
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].input.base != nullptr) {
      inputs_[i] = members[i].input.base + offset;
      continue;
    }
    std::byte* block = scratch_.data() + i * kBlockBytes;
    inputs_[i] = block;
    if (const int32_t code = Read(members[i].input, block, offset, bytes); code != BPS_OK) {
      *culprit = i;
      return code;
    }
  }
  // Reduce may write over its first input, and over no other.
  const auto fits = [&](size_t i) {
    const std::byte* output = members[i].output.base;
    return output != nullptr && (i == 0 || output != members[i].input.base);
  };
  std::byte* result = fits(own)                          ? members[own].output.base + offset
                      : fits(0)                          ? members[0].output.base + offset
                      : members[0].input.base == nullptr ? scratch_.data()
                                                         : scratch_.data() + members.size() * kBlockBytes;
  Reduce(reduction, inputs_, group_sizes, result, bytes / DtypeSize(reduction.dtype));
  for (size_t i = 0; i < members.size(); ++i) {
    if (const int32_t code = Write(members[i].output, result, offset, bytes); code != BPS_OK) {
      *culprit = i;
      return code;
    }
  }
  return BPS_OK;
}

}  // namespace byteps
