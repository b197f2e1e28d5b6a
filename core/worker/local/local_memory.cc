#include "core/worker/local/local_memory.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "core/base/status.h"
#include "core/plugin/region.h"

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
  const uint64_t bytes = asked.tensor->bytes();
  const bool gives = role_->Gives(operation), takes = role_->Takes(operation);
  const auto shareable = [&](const BufferRegions::Place& place, const std::shared_ptr<Buffer>& buffer) {
    return place.region != nullptr && buffer->fd() >= 0 && transport_->shares();
  };
  if (gives) {
    absl::StatusOr<BufferRegions::Place> place = buffers_.Find(asked.request->input_buffer(), asked.input, bytes);
    if (!place.ok()) return Annotate(place.status(), "the input's buffer cannot be registered");
    round->shown_input = *place;
  }
  if (takes) {
    absl::StatusOr<BufferRegions::Place> place = buffers_.Find(asked.request->output_buffer(), asked.output, bytes);
    if (!place.ok()) return Annotate(place.status(), "the output's buffer cannot be registered");
    round->shown_output = *place;
  }
  if (neighbours_->staged() && ((gives && !shareable(round->shown_input, asked.request->input_buffer())) ||
                                (takes && !shareable(round->shown_output, asked.request->output_buffer())))) {
    absl::StatusOr<Staging> staging = staging_.Take(bytes);
    if (!staging.ok()) return Annotate(staging.status(), "there is no shared memory for it");
    round->staging = *std::move(staging);
    if (gives) std::memcpy(round->staging.base, asked.input, bytes);
    const BufferRegions::Place place{round->staging.region.get(), 0};
    round->shown_input = gives ? place : BufferRegions::Place();
    round->shown_output = gives ? BufferRegions::Place() : place;
    round->shown = true;
    return absl::OkStatus();
  }
  if (gives && round->shown_input.region == nullptr) {
    absl::StatusOr<Region> input =
        kept_.Take(*asked.tensor, KeptRegions::Side::kInput, const_cast<std::byte*>(asked.input));
    if (!input.ok()) return Annotate(input.status(), "the input cannot be registered");
    round->input = *std::move(input);
    round->shown_input = {round->input.get(), 0};
  }
  if (takes && round->shown_output.region == nullptr) {
    absl::StatusOr<Region> output = kept_.Take(*asked.tensor, KeptRegions::Side::kOutput, asked.output);
    if (!output.ok()) return Annotate(output.status(), "the output cannot be registered");
    round->output = *std::move(output);
    round->shown_output = {round->output.get(), 0};
  }
  round->shown = gives || takes;
  return absl::OkStatus();
}

// Finds a way to everybody's memory.
bool LocalMemory::Reach(LocalRound* round, absl::Status* error) {
  const Operation& operation = *round->operation;
  const Submission& asked = operation.asked;
  const size_t bytes = asked.tensor->bytes();
  bool all = true;
  bool separate = asked.output != asked.input && !round->staging.region;
  for (size_t index = 0; index < neighbours_->size(); ++index) {
    MemberMemory& memory = round->memory[index];
    if (index == neighbours_->own()) {
      memory.input.base = round->staging.region ? round->staging.base : const_cast<std::byte*>(asked.input);
      memory.output.base = round->staging.region ? round->staging.base : asked.output;
      continue;
    }
    const LocalVoice& voice = round->voices[index];
    const uint8_t* key = voice.keys;
    if ((voice.offer.memory & wire::kOfferInput) != 0) {
      memory.input.peer = Neighbours::PeerOf(index);
      memory.input.remote = {key, voice.offer.key_size, voice.offer.input_offset};
      all &= MapSpan(&memory.input, bytes);
      key += voice.offer.key_size;
    } else if (IsPushPull(operation) || index == neighbours_->Find(asked.root)) {
      *error = absl::InternalError(neighbours_->description(index) + " has not shown its input");
      return false;
    }
    const bool in_place = (voice.offer.memory & wire::kOfferOutput) == 0;
    memory.output.peer = Neighbours::PeerOf(index);
    memory.output.remote =
        in_place ? memory.input.remote : bps_remote{key, voice.offer.key_size, voice.offer.output_offset};
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
    const Submission& asked = round->operation->asked;
    kept_.Keep(*asked.tensor, KeptRegions::Side::kInput, asked.input, std::move(round->input));
    kept_.Keep(*asked.tensor, KeptRegions::Side::kOutput, asked.output, std::move(round->output));
  }
  if (!round->staging.region || !round->shown) return;
  if (result && !role_->Root(*round->operation)) CopyOut(*round);
  staging_.Return(std::move(round->staging));
}

void LocalMemory::TakeAway(LocalRound* round) {
  round->input = Region();
  round->output = Region();
  round->staging = Staging();
  if (const Operation* operation = round->operation; operation->asked.request != nullptr) {
    buffers_.Drop(operation->asked.request->input_buffer());
    buffers_.Drop(operation->asked.request->output_buffer());
  }
  round->shown = false;
}

// The result, out of the memory that was shown in place of the output. What went through this member to the servers is
// in the output already.
void LocalMemory::CopyOut(const LocalRound& round) {
  const Submission& asked = round.operation->asked;
  const uint64_t bytes = asked.tensor->bytes();
  uint64_t first = 0, last = 0;
  if (round.parts.size() != 0) {
    const Tensor& tensor = *asked.tensor;
    const uint32_t end = round.parts.last - 1;
    first = tensor.cut->first(round.parts.first) * tensor.element_bytes();
    last = (tensor.cut->first(end) + tensor.cut->count(end)) * tensor.element_bytes();
  }
  std::memcpy(asked.output, round.staging.base, first);
  std::memcpy(asked.output + last, round.staging.base + last, bytes - last);
}

}  // namespace byteps
