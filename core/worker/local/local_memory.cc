#include "core/worker/local/local_memory.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/status.h"
#include "core/plugin/region.h"
#include "core/reduce/dtype.h"

namespace byteps {

LocalMemory::LocalMemory(Transport* transport, const Neighbours* neighbours, const LocalRole* role)
    : transport_(transport),
      neighbours_(neighbours),
      role_(role),
      staging_(transport),
      buffers_(transport),
      kept_(transport) {}

absl::Status LocalMemory::Show(LocalRound* round) {
  const Operation& operation = *round->operation;
  const Submission& asked = operation.asked;
  const Areas& areas = round->areas;
  const uint64_t bytes = round->bytes();
  const bool gives = role_->HasSource(operation), takes = role_->NeedsTargetAccess(*round);
  const auto shareable = [&](const BufferRegions::Place& place, const std::shared_ptr<Buffer>& buffer) {
    return place.region != nullptr && buffer->fd() >= 0 && transport_->shares();
  };
  if (gives) {
    absl::StatusOr<BufferRegions::Place> place = buffers_.Find(areas.source_buffer, areas.source.address, bytes);
    if (!place.ok()) return Annotate(place.status(), "the input's buffer cannot be registered");
    round->shown_input = *place;
  }
  if (takes) {
    absl::StatusOr<BufferRegions::Place> place = buffers_.Find(areas.target_buffer, areas.target.address, bytes);
    if (!place.ok()) return Annotate(place.status(), "the output's buffer cannot be registered");
    round->shown_output = *place;
  }
  if (neighbours_->staged() && ((gives && !shareable(round->shown_input, areas.source_buffer)) ||
                                (takes && !shareable(round->shown_output, areas.target_buffer)))) {
    absl::StatusOr<Staging> staging = staging_.Take(bytes);
    if (!staging.ok()) return Annotate(staging.status(), "there is no shared memory for it");
    round->staging = *std::move(staging);
    if (gives) round->to_show = {0, bytes};
    const BufferRegions::Place place{round->staging.region.get(), 0};
    round->shown_input = gives ? place : BufferRegions::Place();
    round->shown_output = gives ? BufferRegions::Place() : place;
    round->shown = true;
    return absl::OkStatus();
  }
  if (gives && round->shown_input.region == nullptr) {
    absl::StatusOr<Region> input =
        kept_.Take(asked.tensor->name(), KeptRegions::Side::kInput, {areas.source.address, bytes});
    if (!input.ok()) return Annotate(input.status(), "the input cannot be registered");
    round->input = *std::move(input);
    round->shown_input = {round->input.get(), 0};
  }
  if (takes && round->shown_output.region == nullptr) {
    absl::StatusOr<Region> output =
        kept_.Take(asked.tensor->name(), KeptRegions::Side::kOutput, {areas.target.address, bytes});
    if (!output.ok()) return Annotate(output.status(), "the output cannot be registered");
    round->output = *std::move(output);
    round->shown_output = {round->output.get(), 0};
  }
  round->shown = gives || takes;
  return absl::OkStatus();
}

// Finds a way to the memory of all members.
bool LocalMemory::Reach(LocalRound* round, absl::Status* error) {
  const Operation& operation = *round->operation;
  const Submission& asked = operation.asked;
  const Areas& areas = round->areas;
  const size_t bytes = round->bytes();
  bool all = true;
  bool separate = !areas.in_place() && !round->staging.region;
  for (size_t index = 0; index < neighbours_->size(); ++index) {
    MemberMemory& memory = round->memory[index];
    if (index == neighbours_->own()) {
      memory.input.base = round->staging.region ? round->staging.base : areas.source.address;
      memory.output.base = round->staging.region ? round->staging.base : areas.target.address;
      continue;
    }
    const LocalReport& report = round->reports[index];
    const uint8_t* key = report.keys;
    if ((report.offer.memory & wire::kOfferInput) != 0) {
      memory.input.peer = Neighbours::PeerOf(index);
      memory.input.remote = {key, report.offer.key_size, report.offer.input_offset};
      all &= MapSpan(&memory.input, bytes);
      key += report.offer.key_size;
    } else if (IsPushPull(operation) || index == neighbours_->Find(asked.root)) {
      *error = absl::InternalError(neighbours_->description(index) + " has not shown its input");
      return false;
    }
    const bool in_place = (report.offer.memory & wire::kOfferOutput) == 0;
    memory.output.peer = Neighbours::PeerOf(index);
    memory.output.remote =
        in_place ? memory.input.remote : bps_remote{key, report.offer.key_size, report.offer.output_offset};
    separate &= !in_place;
    // It must be here before the first block is written.
    void* output = nullptr;
    const int32_t code = role_->Writes(operation)
                             ? transport_->BeginWrite(memory.output.peer, memory.output.remote, bytes, &output)
                             : BPS_UNIMPLEMENTED;
    if (code == BPS_OK) transport_->EndWrite(memory.output.peer, memory.output.remote);
    if (code == BPS_TRANSPORT_AGAIN) all = false;
  }
  round->stores = separate && bytes >= kWorthStreaming ? Stores::kStreamed : Stores::kCached;
  return all;
}

// Memory of the transport's kind is mapped; any other is copied. False: it is of that kind, but has not come yet.
bool LocalMemory::MapSpan(MemberSpan* span, size_t bytes) {
  if (span->base != nullptr || (transport_->caps().flags & BPS_TRANSPORT_MAP_REMOTE) == 0) return true;
  void* base = nullptr;
  const int32_t code = transport_->MapRemote(span->peer, span->remote, bytes, &base);
  if (code == BPS_OK) span->base = static_cast<std::byte*>(base);
  return code != BPS_TRANSPORT_AGAIN;
}

// Nothing of what the others have shown is used any more.
void LocalMemory::LetGo(LocalRound* round) {
  for (size_t index = 0; index < neighbours_->size(); ++index) {
    MemberSpan& input = round->memory[index].input;
    if (index == neighbours_->own() || input.base == nullptr) continue;
    input.base = nullptr;
    transport_->UnmapRemote(input.peer, input.remote);
  }
}

void LocalMemory::Finish(LocalRound* round, bool result) {
  if (result && transport_->Has(BPS_TRANSPORT_REG_ADDRESSES)) {
    const TensorName& name = round->operation->asked.tensor->name();
    const Areas& areas = round->areas;
    kept_.Keep(name, KeptRegions::Side::kInput, {areas.source.address, round->bytes()}, std::move(round->input));
    kept_.Keep(name, KeptRegions::Side::kOutput, {areas.target.address, round->bytes()}, std::move(round->output));
  }
  if (!round->staging.region || !round->shown) return;
  staging_.Return(std::move(round->staging));
}

void LocalMemory::TakeAway(LocalRound* round) {
  round->input = Region();
  round->output = Region();
  round->staging = Staging();
  buffers_.Drop(round->areas.source_buffer);
  buffers_.Drop(round->areas.target_buffer);
  round->shown = false;
}

// What went through this member to the servers is in the output already.
bool LocalMemory::ListToTake(LocalRound* round) const {
  if (!round->staging.region || !round->shown || role_->Root(*round->operation)) return false;
  const Payload& target = round->areas.target;
  uint64_t first = 0, last = 0;
  if (round->parts.size() != 0) {
    const Cut& cut = *round->operation->asked.tensor->cut;
    const uint32_t end = round->parts.last - 1;
    const uint64_t size = DtypeSize(target.dtype);
    first = cut.first(round->parts.first) * size;
    last = (cut.first(end) + cut.count(end)) * size;
  }
  round->to_take = {Slice{0, first}, Slice{last, target.bytes}};
  return first != 0 || last != target.bytes;
}

}  // namespace byteps
