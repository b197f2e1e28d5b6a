#include "server/reducer/worker_memory.h"

#include <algorithm>

#include "core/reduce/dtype.h"
#include "core/reduce/reduce.h"
#include "server/reducer/served_session.h"

namespace byteps {
namespace {

bool Same(const wire::MemoryRef& a, const wire::MemoryRef& b) {
  return a.offset == b.offset && a.key_size == b.key_size && std::equal(a.key, a.key + a.key_size, b.key);
}

}  // namespace

MemberSpan WorkerMemory::SpanOf(const Round& round, uint32_t index, const wire::MemoryRef& memory) {
  return {WorkerOf(round, index).peer, nullptr, {memory.key, memory.key_size, memory.offset}};
}

BlockFold* WorkerMemory::FoldOf(size_t members) {
  if (fold_ == nullptr || fold_->members() < members) fold_ = std::make_unique<BlockFold>(transport_, members);
  return fold_.get();
}

// Gives back what was mapped of the members.
class WorkerMemory::Mapped {
 public:
  Mapped(Transport* transport, std::vector<MemberMemory>* members) : transport_(transport), members_(members) {}
  ~Mapped() {
    for (const MemberMemory& member : *members_) {
      const MemberSpan& input = member.input;
      if (input.remote.key != nullptr && input.base != nullptr) transport_->UnmapRemote(input.peer, input.remote);
    }
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  Transport* const transport_;
  std::vector<MemberMemory>* const members_;
};

// BPS_OK: it is mapped, or will be copied.
int32_t WorkerMemory::Map(const Round& round, MemberSpan* input) {
  // (What does not lie as the kernels take it is copied into memory that does.)
  if (input->remote.offset % DtypeSize(round.header().dtype) != 0) return BPS_OK;
  if ((transport_->CapsOf(input->peer).flags & BPS_TRANSPORT_MAP_REMOTE) == 0) return BPS_OK;
  void* base = nullptr;
  const int32_t code = transport_->MapRemote(input->peer, input->remote, round.bytes(), &base);
  if (code == BPS_OK) input->base = static_cast<std::byte*>(base);
  return code == BPS_UNIMPLEMENTED ? BPS_OK : code;
}

// BPS_OK: it is here, or will be copied to. `copies`: it is not known yet whether its owner's memory can be.
int32_t WorkerMemory::Await(const Round& round, const MemberSpan& output, bool copies) {
  void* base = nullptr;
  int32_t code = transport_->BeginWrite(output.peer, output.remote, round.bytes(), &base);
  if (code == BPS_OK) transport_->EndWrite(output.peer, output.remote);
  if (code != BPS_UNIMPLEMENTED || !copies) return code == BPS_UNIMPLEMENTED ? BPS_OK : code;
  // A byte, and back as it is: until the result is written no other side uses it.
  std::byte byte{};
  code = transport_->CopyFrom(output.peer, output.remote, &byte, 1);
  return code == BPS_OK ? transport_->CopyTo(output.peer, output.remote, &byte, 1) : code;
}

WorkerMemory::Result WorkerMemory::Fold(const Round& round, std::span<const void* const> payloads, bool outputs,
                                        std::byte* to) {
  members_.clear();
  const Mapped mapped(transport_, &members_);
  Result result;
  bool over_inputs = false;
  for (uint32_t index = round.first(); index < round.last(); ++index) {
    MemberMemory& member = members_.emplace_back();
    const void* payload = payloads[index - round.first()];
    if (payload != nullptr) {
      member.input.base = static_cast<std::byte*>(const_cast<void*>(payload));
      continue;
    }
    const Contribution& contribution = round.of(index);
    member.input = SpanOf(round, index, contribution.source);
    int32_t code = Map(round, &member.input);
    if (member.input.base != nullptr) ++result.mapped;
    if (code == BPS_OK && outputs && !round.broadcast()) {
      member.output = SpanOf(round, index, contribution.memory);
      over_inputs |= Same(contribution.source, contribution.memory);
      code = Await(round, member.output, member.input.base != nullptr);
    }
    if (code != BPS_OK) return {code, index};
  }
  // What is here as well is read again soon.
  const bool streams = to == nullptr && !over_inputs && round.tensor_bytes() >= kWorthStreaming;
  const Stores stores = streams ? Stores::kStreamed : Stores::kCached;
  BlockFold* fold = FoldOf(members_.size());
  for (uint64_t offset = 0; offset < round.bytes(); offset += BlockFold::kBlockBytes) {
    const size_t bytes = std::min<uint64_t>(BlockFold::kBlockBytes, round.bytes() - offset);
    size_t culprit = 0;
    const int32_t code = fold->Serve(round.reduction(), round.groups(), members_, offset, bytes, stores,
                                     to == nullptr ? nullptr : to + offset, &culprit, &result.begun);
    if (code != BPS_OK) return {code, round.first() + static_cast<uint32_t>(culprit), result.begun};
  }
  return result;
}

WorkerMemory::Result WorkerMemory::Reach(const Round& round) {
  for (uint32_t index = 0; index < round.contributors(); ++index) {
    const Contribution& contribution = round.of(index);
    if (!contribution.in_place) continue;
    int32_t code = BPS_OK;
    if (contribution.state == ContributionState::kAtWorker) {
      MemberSpan input = SpanOf(round, index, contribution.source);
      code = Map(round, &input);
      if (input.base != nullptr) transport_->UnmapRemote(input.peer, input.remote);
    }
    if (code == BPS_OK && !round.broadcast()) {
      code = Await(round, SpanOf(round, index, contribution.memory), false);
    }
    if (code != BPS_OK) return {code, index};
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
