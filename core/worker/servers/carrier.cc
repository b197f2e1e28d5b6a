#include "core/worker/servers/carrier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace byteps {
namespace {

bool OnDevice(const Payload& payload) { return payload.device.type == BPS_CUDA; }

}  // namespace

Carrier::Carrier(size_t index, std::string name, Transport transport, CarrierOptions options, CarrierSink* sink,
                 Logger* log)
    : index_(index), name_(std::move(name)), options_(std::move(options)), sink_(sink), log_(log) {
  EndpointHandler* handler = this;
  endpoint_ = std::make_unique<Endpoint>(std::move(transport), options_.endpoint, handler, log);
  buffers_ = std::make_unique<BufferRegions>(&endpoint_->transport());
  kept_ = std::make_unique<KeptRegions>(&endpoint_->transport());
  devices_ = std::make_unique<DeviceRegions>(&endpoint_->transport());
}

bool Carrier::direct(PeerId peer) const {
  const bps_transport_caps& caps = endpoint_->transport().CapsOf(peer);
  return (caps.flags & BPS_TRANSPORT_CHEAP_REG) != 0 && caps.alignment <= 1;
}

void Carrier::SetSlotBytes(uint64_t bytes) {
  slot_bytes_ = bytes;
  bounce_ = std::make_unique<BouncePool>(&endpoint_->transport(), bytes, options_.bounce_blocks);
}

Transfer::Memory& Carrier::MemoryOf(Transfer* transfer) const {
  if (transfer->memory.size() <= index_) transfer->memory.resize(index_ + 1);
  return transfer->memory[index_];
}

bool Carrier::Aligned(const bps_transport_caps& caps, const void* address) {
  return caps.alignment <= 1 || reinterpret_cast<uintptr_t>(address) % caps.alignment == 0;
}

Carrier::Grant Carrier::Source(Partition* partition, SendBuffer* buffer, absl::Status* error) {
  std::byte* const base = partition->source.address;
  if (OnDevice(partition->source)) {
    const absl::StatusOr<BufferRegions::Place> place = DevicePlaceOf(*partition, true);
    if (!place.ok()) {
      *error = place.status();
      return Grant::kFailed;
    }
    buffer->local = {place->region, base};
    return Grant::kYes;
  }
  const bps_transport_caps& caps = endpoint_->transport().CapsOf(partition->peer);
  if (Aligned(caps, base)) {
    if ((caps.flags & BPS_TRANSPORT_LOCAL_ANY) != 0) {
      buffer->local = {nullptr, base};
      return Grant::kYes;
    }
    if ((caps.flags & BPS_TRANSPORT_CHEAP_REG) != 0) {
      const absl::StatusOr<bps_region*> region = RegionOf(*partition, true);
      if (!region.ok()) {
        *error = region.status();
        return Grant::kFailed;
      }
      buffer->local = {*region, base};
      return Grant::kYes;
    }
  }
  if (absl::Status status = bounce_->Prepare(); !status.ok()) {
    *error = status;
    return Grant::kFailed;
  }
  buffer->bounce = bounce_->Take();
  if (!buffer->bounce) return Grant::kLater;
  std::memcpy(bounce_->data(*buffer->bounce), base, partition->source.bytes);
  buffer->local = bounce_->local(*buffer->bounce);
  return Grant::kYes;
}

void Carrier::EndSource(const SendBuffer& buffer) {
  if (buffer.bounce) bounce_->Free(*buffer.bounce);
}

// The registration of the source or target of the partition's transfer; one for both, if they are the same.
absl::StatusOr<bps_region*> Carrier::RegionOf(const Partition& partition, bool input) {
  Transfer* transfer = partition.transfer;
  const Areas& areas = transfer->areas;
  input &= !areas.in_place();
  const Payload& area = input ? areas.source : areas.target;
  Transfer::Memory& memory = MemoryOf(transfer);
  memory.addresses &= (endpoint_->transport().CapsOf(partition.peer).flags & BPS_TRANSPORT_REG_ADDRESSES) != 0;
  Region& region = input ? memory.input : memory.output;
  if (!region) {
    const KeptRegions::Side side = input ? KeptRegions::Side::kInput : KeptRegions::Side::kOutput;
    absl::StatusOr<Region> made = kept_->Take(transfer->tensor().name(), side, {area.address, area.bytes});
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
  const Areas& areas = partition.transfer->areas;
  const auto mappable = [](const std::shared_ptr<Buffer>& buffer, const Payload& area) {
    return buffer != nullptr && buffer->fd() >= 0 && buffer->Contains(area.address, area.bytes);
  };
  return (partition.source.bytes == 0 || mappable(areas.source_buffer, areas.source)) &&
         (partition.target.bytes == 0 || mappable(areas.target_buffer, areas.target));
}

bool Carrier::InPlace(const Partition& partition) const {
  if (OnDevice(partition.source) || OnDevice(partition.target)) return false;
  return copies_.contains(partition.peer) || (maps_.contains(partition.peer) && Mappable(partition));
}

void Carrier::NoteRefusal(const Partition& partition) {
  if (maps_.contains(partition.peer) && Mappable(partition)) maps_.erase(partition.peer);
}

bool Carrier::TakesDevice(PeerId peer, const Areas& areas) {
  Transport& transport = endpoint_->transport();
  const bps_transport_caps& caps = transport.CapsOf(peer);
  if (device_refused_ || (caps.flags & BPS_TRANSPORT_CUDA) == 0 || caps.alignment > 1) return false;
  absl::Status status;
  for (const auto& [area, allocation] :
       {std::pair(&areas.source, areas.source_allocation), std::pair(&areas.target, areas.target_allocation)}) {
    if (!OnDevice(*area) || area->bytes == 0 || !status.ok()) continue;
    if (allocation == nullptr) return false;
    const size_t known = devices_->size();
    absl::StatusOr<std::shared_ptr<Region>> region = devices_->Find(*allocation);
    status = region.status();
    uint8_t key[wire::kMaxKey];
    const int32_t code = status.ok() ? transport.ExportKey((*region)->get(), peer, key) : BPS_OK;
    if (code == BPS_UNAVAILABLE) return false;  // the server is lost, and its loss is told next
    if (code != BPS_OK) status = MakeStatus(code, "it cannot be shown to a server");
    if (status.ok() && known == 0) {
      BPS_LOG(*log_, kInfo) << "the transport " << transport.NameOf(peer) << " reads and writes the memory of "
                            << allocation->gpu->name() << " itself (BYTEPS_GPU_DIRECT)";
    }
  }
  if (status.ok()) return true;
  device_refused_ = true;
  BPS_LOG(*log_, kWarning) << "the transport " << transport.NameOf(peer)
                           << " cannot register memory of a GPU: " << status.message()
                           << "; tensors of GPUs go through pinned memory of the host";
  return false;
}

absl::StatusOr<BufferRegions::Place> Carrier::DevicePlaceOf(const Partition& partition, bool input) {
  Transfer* transfer = partition.transfer;
  const Areas& areas = transfer->areas;
  const DeviceAllocation* const allocation = input ? areas.source_allocation : areas.target_allocation;
  if (allocation == nullptr) return absl::InternalError("memory of a GPU has come where only that of the host can");
  Transfer::Memory& memory = MemoryOf(transfer);
  std::shared_ptr<Region>& region = input ? memory.device_input : memory.device_output;
  if (region == nullptr) {
    absl::StatusOr<std::shared_ptr<Region>> found = devices_->Find(*allocation);
    if (!found.ok()) return found.status();
    region = *std::move(found);
  }
  const Payload& area = input ? areas.source : areas.target;
  return BufferRegions::Place{region->get(), static_cast<uint64_t>(area.address - allocation->base)};
}

absl::StatusOr<BufferRegions::Place> Carrier::PlaceOf(const Partition& partition, bool input) {
  if (OnDevice(input ? partition.source : partition.target)) return DevicePlaceOf(partition, input);
  const Areas& areas = partition.transfer->areas;
  if (Shares(partition.peer)) {
    const Payload& area = input ? areas.source : areas.target;
    absl::StatusOr<BufferRegions::Place> place =
        buffers_->Find(input ? areas.source_buffer : areas.target_buffer, area.address, area.bytes);
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
    ++partition->transfer->exposed;
  }
  const Grant exported = Export(*place, *partition, false, memory, error);
  if (exported != Grant::kYes) {
    EndExposure(partition);
    return exported;
  }
  memory->immediate = *partition->result_immediate;
  return Grant::kYes;
}

Carrier::Grant Carrier::Export(const BufferRegions::Place& place, const Partition& partition, bool input,
                               wire::MemoryRef* memory, absl::Status* error) const {
  const int32_t code = endpoint_->transport().ExportKey(place.region, partition.peer, memory->key);
  // The transport has lost the peer, and says next why: that is what the operation is to end with.
  if (code == BPS_UNAVAILABLE) return Grant::kLater;
  if (code != BPS_OK) {
    *error = MakeStatus(code, absl::StrCat("the ", input ? "input" : "output", " cannot be shown to a server"));
    return Grant::kFailed;
  }
  memory->key_size = static_cast<uint16_t>(endpoint_->caps().key_size);
  const Areas& areas = partition.transfer->areas;
  memory->offset = place.offset + static_cast<uint64_t>(input ? partition.source.address - areas.source.address
                                                              : partition.target.address - areas.target.address);
  return Grant::kYes;
}

Carrier::Grant Carrier::Show(Partition* partition, wire::MemoryRef* memory, absl::Status* error) {
  const absl::StatusOr<BufferRegions::Place> place = PlaceOf(*partition, true);
  if (!place.ok()) {
    *error = place.status();
    return Grant::kFailed;
  }
  const Grant exported = Export(*place, *partition, true, memory, error);
  if (exported == Grant::kYes && !std::exchange(partition->in_place, true)) ++partition->transfer->exposed;
  return exported;
}

void Carrier::EndExposure(Partition* partition) {
  if (std::exchange(partition->in_place, false)) --partition->transfer->exposed;
  if (!partition->result_immediate) return;
  landing_.Free(*partition->result_immediate);
  partition->result_immediate.reset();
  --partition->transfer->exposed;
}

void Carrier::Keep(Transfer* transfer) {
  if (transfer->memory.size() <= index_) return;
  Transfer::Memory& memory = transfer->memory[index_];
  if (!memory.addresses) return;
  const Payload &source = transfer->areas.source, &target = transfer->areas.target;
  const TensorName& name = transfer->tensor().name();
  kept_->Keep(name, KeptRegions::Side::kInput, {source.address, source.bytes}, std::move(memory.input));
  kept_->Keep(name, KeptRegions::Side::kOutput, {target.address, target.bytes}, std::move(memory.output));
}

bool Carrier::TakeAway(Transfer* transfer) {
  const Areas& areas = transfer->areas;
  bool gone = true;
  if (transfer->memory.size() > index_) {
    Transfer::Memory& memory = transfer->memory[index_];
    memory.input = Region();
    memory.output = Region();
    if (memory.device_output != nullptr) {
      devices_->Forget(*areas.target_allocation);
      memory.fenced = std::exchange(memory.device_output, nullptr);
    }
    // A write from there may still wait for the transport.
    if (transfer->writes == 0) memory.device_input = nullptr;
    gone = memory.fenced.expired();
  }
  buffers_->Drop(areas.source_buffer);
  buffers_->Drop(areas.target_buffer);
  return gone;
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
  devices_.reset();
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

// Until it answers, and if it cannot be asked or cannot reach us, payloads go by its slots, unless they lie where it
// maps them.
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
