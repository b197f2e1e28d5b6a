#include "server/worker_memory.h"

#include <algorithm>

#include "server/served_session.h"

namespace byteps {

MemberSpan WorkerMemory::SpanOf(const Round& round, uint32_t index, const wire::MemoryRef& memory) {
  const PeerId peer = round.session()->workers[round.of(index).rank].peer;
  return {peer, nullptr, {memory.key, memory.key_size, memory.offset}};
}

BlockFold* WorkerMemory::FoldOf(size_t members) {
  if (fold_ == nullptr || fold_->members() < members) fold_ = std::make_unique<BlockFold>(transport_, members);
  return fold_.get();
}

WorkerMemory::Result WorkerMemory::Fold(const Round& round, std::span<const void* const> payloads, bool outputs,
                                        std::byte* to) {
  members_.clear();
  for (uint32_t index = round.first(); index < round.last(); ++index) {
    MemberMemory& member = members_.emplace_back();
    const void* payload = payloads[index - round.first()];
    if (payload != nullptr) {
      member.input.base = static_cast<std::byte*>(const_cast<void*>(payload));
      continue;
    }
    member.input = SpanOf(round, index, round.of(index).source);
    if (outputs && !round.broadcast()) member.output = SpanOf(round, index, round.of(index).memory);
  }
  BlockFold* fold = FoldOf(members_.size());
  for (uint64_t offset = 0; offset < round.bytes(); offset += BlockFold::kBlockBytes) {
    const size_t bytes = std::min<uint64_t>(BlockFold::kBlockBytes, round.bytes() - offset);
    size_t culprit = 0;
    const int32_t code = fold->Serve(round.reduction(), round.groups(), members_, offset, bytes,
                                     to == nullptr ? nullptr : to + offset, &culprit);
    if (code != BPS_OK) return {code, round.first() + static_cast<uint32_t>(culprit)};
  }
  return {};
}

WorkerMemory::Result WorkerMemory::Read(const Round& round, uint32_t index) {
  if (read_.size() < round.bytes()) read_ = AlignedMemory(round.bytes());
  const MemberSpan from = SpanOf(round, index, round.of(index).source);
  return {FoldOf(round.contributors())->Read(from, read_.data(), 0, round.bytes()), index};
}

WorkerMemory::Result WorkerMemory::Write(const Round& round, const std::byte* from) {
  if (round.broadcast()) return {};
  for (uint32_t index = round.first(); index < round.last(); ++index) {
    if (!round.of(index).in_place) continue;
    const MemberSpan to = SpanOf(round, index, round.of(index).memory);
    const int32_t code = FoldOf(round.contributors())->WriteTo(to, from, 0, round.bytes());
    if (code != BPS_OK) return {code, index};
  }
  return {};
}

}  // namespace byteps
