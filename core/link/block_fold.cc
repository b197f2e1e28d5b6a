#include "core/link/block_fold.h"

#include <cstring>

#include "abi/byteps.h"
#include "core/reduce/dtype.h"

namespace byteps {
namespace {

bps_remote At(const MemberSpan& span, uint64_t offset) {
  bps_remote remote = span.remote;
  remote.offset += offset;
  return remote;
}

// The kernels take no other; a copy takes any.
bool Aligned(const void* address, const Reduction& reduction) {
  return reinterpret_cast<uintptr_t>(address) % DtypeSize(reduction.dtype) == 0;
}

}  // namespace

BlockFold::BlockFold(Transport* transport, size_t members)
    : transport_(transport), scratch_((members + 1) * kBlockBytes), inputs_(members) {
  outputs_.reserve(members);
  writing_.reserve(members);
  copied_.reserve(members);
}

int32_t BlockFold::Confirm(const MemberSpan& span) {
  if (span.base == nullptr || span.remote.key == nullptr) return BPS_OK;
  void* base = nullptr;
  const int32_t code = transport_->BeginWrite(span.peer, span.remote, 1, &base);
  if (code == BPS_OK) transport_->EndWrite(span.peer, span.remote);
  return code == BPS_UNIMPLEMENTED ? BPS_OK : code;
}

int32_t BlockFold::Read(const MemberSpan& from, std::byte* to, uint64_t offset, size_t bytes) {
  if (from.base != nullptr) {
    std::memcpy(to, from.base + offset, bytes);
    return Confirm(from);
  }
  return transport_->CopyFrom(from.peer, At(from, offset), to, bytes);
}

int32_t BlockFold::Collect(std::span<const MemberMemory> members, uint64_t offset, size_t bytes, size_t* culprit) {
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
  return BPS_OK;
}

int32_t BlockFold::Fold(const Reduction& reduction, std::span<const uint32_t> group_sizes,
                        std::span<const MemberMemory> members, size_t own, uint64_t offset, size_t bytes, Stores stores,
                        size_t* culprit) {
  bool begun = false;
  return FoldInto(reduction, group_sizes, members, own, offset, bytes, stores, members[own].output.base + offset,
                  culprit, &begun);
}

int32_t BlockFold::Serve(const Reduction& reduction, std::span<const uint32_t> group_sizes,
                         std::span<const MemberMemory> members, uint64_t offset, size_t bytes, Stores stores,
                         std::byte* to, size_t* culprit, bool* begun) {
  const int32_t code = FoldInto(reduction, group_sizes, members, SIZE_MAX, offset, bytes, stores, to, culprit, begun);
  if (code != BPS_OK) return code;
  // Writing the output has checked the right to it; a member that took it away would have taken the input away, too.
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].output.peer != 0) continue;
    if (const int32_t confirmed = Confirm(members[i].input); confirmed != BPS_OK) {
      *culprit = i;
      return confirmed;
    }
  }
  return BPS_OK;
}

// `to` may be nullptr: no member here wants the result.
int32_t BlockFold::FoldInto(const Reduction& reduction, std::span<const uint32_t> group_sizes,
                            std::span<const MemberMemory> members, size_t own, uint64_t offset, size_t bytes,
                            Stores stores, std::byte* to, size_t* culprit, bool* begun) {
  if (const int32_t code = Collect(members, offset, bytes, culprit); code != BPS_OK) return code;
  outputs_.clear();
  if (to != nullptr) outputs_.push_back(to);
  writing_.clear();
  copied_.clear();
  int32_t result = BPS_OK;
  for (size_t i = 0; i < members.size() && result == BPS_OK; ++i) {
    if (i == own || members[i].output.peer == 0) continue;
    void* output = nullptr;
    const int32_t code = transport_->BeginWrite(members[i].output.peer, At(members[i].output, offset), bytes, &output);
    if (code == BPS_OK && Aligned(output, reduction)) {
      outputs_.push_back(output);
      writing_.push_back(i);
    } else if (code == BPS_OK || code == BPS_UNIMPLEMENTED) {
      if (code == BPS_OK) transport_->EndWrite(members[i].output.peer, members[i].output.remote);
      copied_.push_back(i);
    } else {
      *culprit = i;
      result = code;
    }
  }
  // What is copied lies somewhere here first.
  if (to == nullptr && !copied_.empty()) {
    to = scratch_.data() + inputs_.size() * kBlockBytes;
    outputs_.push_back(to);
  }
  if (result == BPS_OK && !outputs_.empty()) {
    *begun |= !writing_.empty();
    // It is read again at once.
    ReduceToAll(reduction, std::span(inputs_).first(members.size()), group_sizes, outputs_,
                bytes / DtypeSize(reduction.dtype), copied_.empty() ? stores : Stores::kCached);
  }
  for (const size_t i : writing_) transport_->EndWrite(members[i].output.peer, members[i].output.remote);
  for (size_t k = 0; k < copied_.size() && result == BPS_OK; ++k) {
    const MemberSpan& there = members[copied_[k]].output;
    result = transport_->CopyTo(there.peer, At(there, offset), to, bytes);
    *begun |= result != BPS_UNIMPLEMENTED;
    if (result != BPS_OK) *culprit = copied_[k];
  }
  return result;
}

int32_t BlockFold::Gather(const Reduction& reduction, std::span<const uint32_t> group_sizes,
                          std::span<const MemberMemory> members, uint64_t offset, size_t bytes, std::byte* to,
                          size_t* culprit) {
  if (const int32_t code = Collect(members, offset, bytes, culprit); code != BPS_OK) return code;
  Reduce(reduction, std::span(inputs_).first(members.size()), group_sizes, to, bytes / DtypeSize(reduction.dtype));
  for (size_t i = 0; i < members.size(); ++i) {
    if (const int32_t code = Confirm(members[i].input); code != BPS_OK) {
      *culprit = i;
      return code;
    }
  }
  return BPS_OK;
}

int32_t BlockFold::WriteTo(const MemberSpan& to, const std::byte* from, uint64_t offset, size_t bytes) {
  void* output = nullptr;
  const int32_t code = transport_->BeginWrite(to.peer, At(to, offset), bytes, &output);
  if (code == BPS_UNIMPLEMENTED) return transport_->CopyTo(to.peer, At(to, offset), from, bytes);
  if (code != BPS_OK) return code;
  std::memcpy(output, from, bytes);
  transport_->EndWrite(to.peer, to.remote);
  return BPS_OK;
}

int32_t BlockFold::Spread(std::span<const MemberMemory> members, size_t own, const std::byte* from, uint64_t offset,
                          size_t bytes, size_t* culprit) {
  for (size_t i = 0; i < members.size(); ++i) {
    if (i == own) continue;
    if (const int32_t code = WriteTo(members[i].output, from, offset, bytes); code != BPS_OK) {
      *culprit = i;
      return code;
    }
  }
  return BPS_OK;
}

}  // namespace byteps
