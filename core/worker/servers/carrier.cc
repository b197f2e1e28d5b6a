#include "core/worker/servers/carrier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace byteps {

Carrier::Carrier(size_t index, std::string name, Transport transport, CarrierOptions options, CarrierSink* sink,
                 Logger* log)
    : index_(index), name_(std::move(name)), options_(std::move(options)), sink_(sink), log_(log) {
  EndpointHandler* handler = this;
  endpoint_ = std::make_unique<Endpoint>(std::move(transport), options_.endpoint, handler, log);
  buffers_ = std::make_unique<BufferRegions>(&endpoint_->transport());
  kept_ = std::make_unique<KeptRegions>(&endpoint_->transport());
}

bool Carrier::direct(PeerId peer) const {
  const bps_transport_caps& caps = endpoint_->transport().CapsOf(peer);
  return (caps.flags & BPS_TRANSPORT_CHEAP_REG) != 0 && caps.alignment <= 1;
}

void Carrier::SetSlotBytes(uint64_t bytes) {
  slot_bytes_ = bytes;
  bounce_ = std::make_unique<BouncePool>(&endpoint_->transport(), bytes, options_.bounce_blocks);
}

Operation::Memory& Carrier::MemoryOf(Operation* operation) const {
  if (operation->memory.size() <= index_) operation->memory.resize(index_ + 1);
  return operation->memory[index_];
}

bool Carrier::Aligned(const bps_transport_caps& caps, const void* address) {
  return caps.alignment <= 1 || reinterpret_cast<uintptr_t>(address) % caps.alignment == 0;
}

Carrier::Grant Carrier::Source(Partition* partition, Payload* payload, absl::Status* error) {
  const Submission& asked = partition->operation->asked;
  std::byte* base =
      const_cast<std::byte*>(partition->operation->source) + partition->first * asked.tensor->element_bytes();
  const bps_transport_caps& caps = endpoint_->transport().CapsOf(partition->peer);
  if (Aligned(caps, base)) {
    if ((caps.flags & BPS_TRANSPORT_LOCAL_ANY) != 0) {
      payload->local = {nullptr, base};
      return Grant::kYes;
    }
    if ((caps.flags & BPS_TRANSPORT_CHEAP_REG) != 0) {
      const absl::StatusOr<bps_region*> region = RegionOf(*partition, true);
      if (!region.ok()) {
        *error = region.status();
        return Grant::kFailed;
      }
      payload->local = {*region, base};
      return Grant::kYes;
    }
  }
  if (absl::Status status = bounce_->Prepare(); !status.ok()) {
    *error = status;
    return Grant::kFailed;
  }
  payload->bounce = bounce_->Take();
  if (!payload->bounce) return Grant::kLater;
  std::memcpy(bounce_->data(*payload->bounce), base, partition->push_bytes);
  payload->local = bounce_->local(*payload->bounce);
  return Grant::kYes;
}

void Carrier::EndSource(const Payload& payload) {
  if (payload.bounce) bounce_->Free(*payload.bounce);
}

// The registration of the input or output of the partition's operation; one for both, if they are the same.
absl::StatusOr<bps_region*> Carrier::RegionOf(const Partition& partition, bool input) {
  Operation* operation = partition.operation;
  const Submission& asked = operation->asked;
  input &= operation->source != asked.output;
  std::byte* const base = input ? const_cast<std::byte*>(operation->source) : asked.output;
  Operation::Memory& memory = MemoryOf(operation);
  memory.addresses &= (endpoint_->transport().CapsOf(partition.peer).flags & BPS_TRANSPORT_REG_ADDRESSES) != 0;
  Region& region = input ? memory.input : memory.output;
  if (!region) {
    const KeptRegions::Side side = input ? KeptRegions::Side::kInput : KeptRegions::Side::kOutput;
    absl::StatusOr<Region> made = kept_->Take(*asked.tensor, side, base);
    if (!made.ok()) return made.status();
    region = *std::move(made);
  }
  return region.get();
}

bool Carrier::Shares(PeerId peer) const {
  const Transport& transport = endpoint_->transport();
  return transport.shares() && (transport.CapsOf(peer).flags & BPS_TRANSPORT_MAP_REMOTE) != 0;
}

bool Carrier::Mappable(const Partition& partition) {
  const Operation& operation = *partition.operation;
  const Submission& asked = operation.asked;
  const auto mappable = [&](const std::shared_ptr<Buffer>& buffer, const void* at) {
    return buffer != nullptr && buffer->fd() >= 0 && buffer->Contains(at, asked.tensor->bytes());
  };
  const bool over_output = operation.source == asked.output;
  const std::shared_ptr<Buffer>& output = asked.request->output_buffer();
  const std::shared_ptr<Buffer>& input = over_output ? output : asked.request->input_buffer();
  return (partition.push_bytes == 0 || mappable(input, operation.source)) &&
         (partition.result_bytes == 0 || mappable(output, asked.output));
}

bool Carrier::InPlace(const Partition& partition) const {
  return copies_.contains(partition.peer) || (maps_.contains(partition.peer) && Mappable(partition));
}

void Carrier::NoteRefusal(const Partition& partition) {
  if (maps_.contains(partition.peer) && Mappable(partition)) maps_.erase(partition.peer);
}

absl::StatusOr<BufferRegions::Place> Carrier::PlaceOf(const Partition& partition, bool input) {
  Operation* operation = partition.operation;
  const Submission& asked = operation->asked;
  input &= operation->source != asked.output;
  if (Shares(partition.peer)) {
    const std::shared_ptr<Buffer>& buffer = input ? asked.request->input_buffer() : asked.request->output_buffer();
    absl::StatusOr<BufferRegions::Place> place =
        buffers_->Find(buffer, input ? operation->source : asked.output, asked.tensor->bytes());
    if (!place.ok() || place->region != nullptr) return place;
  }
  const absl::StatusOr<bps_region*> region = RegionOf(partition, input);
  if (!region.ok()) return region.status();
  return BufferRegions::Place{*region, 0};
}

Carrier::Grant Carrier::Expose(Partition* partition, wire::MemoryRef* memory, absl::Status* error) {
  const absl::StatusOr<BufferRegions::Place> place = PlaceOf(*partition, false);
  if (!place.ok()) {
    *error = place.status();
    return Grant::kFailed;
  }
  if (!partition->result_immediate) {
    partition->result_immediate = landing_.Take();
    if (!partition->result_immediate) return Grant::kLater;
    ++partition->operation->exposed;
  }
  const Grant exported = Export(*place, *partition, memory, "output", error);
  if (exported != Grant::kYes) {
    EndExposure(partition);
    return exported;
  }
  memory->immediate = *partition->result_immediate;
  return Grant::kYes;
}

Carrier::Grant Carrier::Export(const BufferRegions::Place& place, const Partition& partition, wire::MemoryRef* memory,
                               const char* what, absl::Status* error) const {
  const int32_t code = endpoint_->transport().ExportKey(place.region, partition.peer, memory->key);
  // The transport has lost the peer, and says next why: that is what the operation is to end with.
  if (code == BPS_UNAVAILABLE) return Grant::kLater;
  if (code != BPS_OK) {
    *error = MakeStatus(code, absl::StrCat("the ", what, " cannot be shown to a server"));
    return Grant::kFailed;
  }
  memory->key_size = static_cast<uint16_t>(endpoint_->caps().key_size);
  memory->offset = place.offset + partition.first * partition.operation->asked.tensor->element_bytes();
  return Grant::kYes;
}

Carrier::Grant Carrier::Show(Partition* partition, wire::MemoryRef* memory, absl::Status* error) {
  const absl::StatusOr<BufferRegions::Place> place = PlaceOf(*partition, true);
  if (!place.ok()) {
    *error = place.status();
    return Grant::kFailed;
  }
  const Grant exported = Export(*place, *partition, memory, "input", error);
  if (exported == Grant::kYes && !std::exchange(partition->in_place, true)) ++partition->operation->exposed;
  return exported;
}

void Carrier::EndExposure(Partition* partition) {
  if (std::exchange(partition->in_place, false)) --partition->operation->exposed;
  if (!partition->result_immediate) return;
  landing_.Free(*partition->result_immediate);
  partition->result_immediate.reset();
  --partition->operation->exposed;
}

void Carrier::Keep(Operation* operation) {
  if (operation->memory.size() <= index_) return;
  Operation::Memory& memory = operation->memory[index_];
  if (!memory.addresses) return;
  const Submission& asked = operation->asked;
  kept_->Keep(*asked.tensor, KeptRegions::Side::kInput, operation->source, std::move(memory.input));
  kept_->Keep(*asked.tensor, KeptRegions::Side::kOutput, asked.output, std::move(memory.output));
}

void Carrier::TakeAway(Operation* operation) {
  if (operation->memory.size() > index_) operation->memory[index_] = {};
  if (operation->asked.request == nullptr) return;
  buffers_->Drop(operation->asked.request->input_buffer());
  buffers_->Drop(operation->asked.request->output_buffer());
}

PeerId Carrier::WindowOwner(uint32_t immediate) const {
  const uint32_t slot = wire::ImmediateSlot(immediate);
  return slot < window_of_slot_.size() && window_of_slot_[slot] != nullptr ? window_of_slot_[slot]->peer : 0;
}

std::span<const std::byte> Carrier::WindowSlot(PeerId peer, uint32_t immediate) const {
  if (WindowOwner(immediate) != peer) return {};
  const uint32_t slot = wire::ImmediateSlot(immediate);
  const Window* window = window_of_slot_[slot];
  return {window->memory.data() + (slot - window->first_slot) * slot_bytes_, slot_bytes_};
}

void Carrier::ReturnWindowSlot(PeerId peer, uint32_t immediate) { endpoint_->Return(peer, landing_.Renew(immediate)); }

absl::Status Carrier::LendWindow(PeerId peer) {
  const uint32_t slots = options_.window_slots;
  auto window = std::make_unique<Window>();
  window->peer = peer;
  window->memory = AlignedMemory(slots * slot_bytes_);
  absl::StatusOr<Region> region = Region::Make(&endpoint_->transport(), window->memory.data(), window->memory.size());
  if (!region.ok()) return Annotate(region.status(), "registering the memory for results");
  window->region = *std::move(region);
  const std::optional<uint32_t> first = landing_.TakeRange(slots);
  if (!first) return absl::ResourceExhaustedError("too many servers for landing slots of their own");
  window->first_slot = *first;
  absl::Status lent = endpoint_->Lend(peer, window->region.get(), 0, slot_bytes_, *first, slots);
  if (!lent.ok()) return lent;
  if (window_of_slot_.size() < *first + slots) window_of_slot_.resize(*first + slots);
  std::fill_n(window_of_slot_.begin() + *first, slots, window.get());
  windows_.push_back(std::move(window));
  return absl::OkStatus();
}

void Carrier::Stop() {
  probe_.reset();
  copies_.clear();
  maps_.clear();
  bounce_.reset();
  window_of_slot_.clear();
  windows_.clear();
  kept_.reset();
  buffers_.reset();
  endpoint_.reset();
}

void Carrier::OnReady(PeerId peer) {
  if (!direct(peer)) {
    if (absl::Status status = LendWindow(peer); !status.ok()) {
      sink_->OnPeerDown(this, peer, status);
      return;
    }
  }
  const bool reaches = (endpoint_->transport().CapsOf(peer).flags & BPS_TRANSPORT_COPY) != 0;
  if (options_.in_place && direct(peer) && reaches) {
    if (Shares(peer)) maps_.insert(peer);
    AskReach(peer);
  }
  sink_->OnReady(this, peer);
}

// Until it answers, and if it cannot be asked or cannot reach us, payloads go by its slots, unless they lie where it maps
// them.
void Carrier::AskReach(PeerId peer) {
  if (probe_ == nullptr) {
    auto probe = std::make_unique<MemoryProbe>(endpoint_.get(), "", log_);
    if (!probe->Open(peer).ok()) return;
    probe_ = std::move(probe);
  }
  probe_->Ask(peer, "a server").IgnoreError();
}

void Carrier::OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  if (type == wire::RecordType::kReach && probe_ != nullptr) {
    if (MemoryProbe::ReadReach(body).value_or(false)) {
      copies_.insert(peer);
    } else {
      copies_.erase(peer);
    }
    return sink_->OnRoom(this, peer);
  }
  sink_->OnRecord(this, peer, type, body);
}

void Carrier::OnLanded(uint32_t immediate) {
  if (const std::optional<uint64_t> cookie = landing_.Land(immediate)) sink_->OnLanded(this, immediate, *cookie);
}

void Carrier::OnWritten(PeerId peer, uint64_t user, int32_t code) { sink_->OnWritten(this, peer, user, code); }
void Carrier::OnRoom(PeerId peer) { sink_->OnRoom(this, peer); }
void Carrier::OnPeerDown(PeerId peer, const absl::Status& why) { sink_->OnPeerDown(this, peer, why); }

}  // namespace byteps
