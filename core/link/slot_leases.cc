#include "core/link/slot_leases.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

// The largest slot, and the largest offset, that makes sense.
constexpr uint64_t kMaxBytes = uint64_t{1} << 40;

}  // namespace

std::string SlotLeases::OnLease(std::span<const std::byte> body) {
  Lease lease;
  if (!ReadStruct(body, &lease.body)) return "LEASE is too short";
  const wire::LeaseBody& b = lease.body;
  const uint64_t end = uint64_t{b.first_slot} + b.slots;
  if (b.key_size > wire::kMaxKey || b.slots == 0 || b.slot_bytes == 0 || end > (1u << wire::kSlotBits) ||
      b.slot_bytes > kMaxBytes || b.offset > kMaxBytes) {
    return absl::StrCat("LEASE of ", b.slots, " slots of ", b.slot_bytes, " bytes from slot ", b.first_slot, " on, at ",
                        b.offset, ", with a key of ", b.key_size, " bytes");
  }
  for (const Lease& other : leases_) {
    if (b.first_slot < other.body.first_slot + other.body.slots && other.body.first_slot < end) {
      return absl::StrCat("LEASE of slots ", b.first_slot, " to ", end - 1, ", some of which it has lent already");
    }
  }
  lease.taken.resize(b.slots);
  leases_.push_back(lease);
  lent_ += b.slots;
  for (uint32_t i = b.slots; i-- > 0;) {
    free_.push_back({wire::Immediate(b.first_slot + i, 0), b.offset + i * b.slot_bytes, b.slot_bytes});
  }
  return "";
}

std::string SlotLeases::OnReturn(std::span<const std::byte> body) {
  wire::ReturnBody header;
  if (!ReadStruct(body, &header)) return "RETURN is too short";
  const std::span<const std::byte> rest = body.subspan(sizeof header);
  if (rest.size() / sizeof(uint32_t) < header.count) return "RETURN is cut off";
  for (uint32_t i = 0; i < header.count; ++i) {
    uint32_t immediate;
    std::memcpy(&immediate, rest.data() + i * sizeof immediate, sizeof immediate);
    const uint32_t slot = wire::ImmediateSlot(immediate);
    Lease* lease = Find(slot);
    if (lease == nullptr) return absl::StrCat("RETURN of slot ", slot, " that it never lent");
    const uint32_t index = slot - lease->body.first_slot;
    // One that is free would be free twice, and two writes would go to one place.
    if (!lease->taken[index]) return absl::StrCat("RETURN of slot ", slot, ", which was not taken");
    lease->taken[index] = false;
    free_.push_back({immediate, lease->body.offset + index * lease->body.slot_bytes, lease->body.slot_bytes});
  }
  return "";
}

const SlotLeases::Lease* SlotLeases::Find(uint32_t slot) const {
  for (const Lease& lease : leases_) {
    if (slot >= lease.body.first_slot && slot - lease.body.first_slot < lease.body.slots) return &lease;
  }
  return nullptr;
}

std::optional<RemoteSlot> SlotLeases::Take() {
  if (free_.empty()) return std::nullopt;
  // The slot given back last is the one most likely still in the peer's cache.
  const RemoteSlot slot = free_.back();
  free_.pop_back();
  const uint32_t number = wire::ImmediateSlot(slot.immediate);
  Lease* lease = Find(number);
  lease->taken[number - lease->body.first_slot] = true;
  return slot;
}

void SlotLeases::GiveBack(const RemoteSlot& slot) {
  const uint32_t number = wire::ImmediateSlot(slot.immediate);
  Lease* lease = Find(number);
  if (lease == nullptr || !lease->taken[number - lease->body.first_slot]) return;
  lease->taken[number - lease->body.first_slot] = false;
  free_.push_back(slot);
}

std::optional<bps_remote> SlotLeases::RemoteOf(const RemoteSlot& slot) const {
  const Lease* lease = Find(wire::ImmediateSlot(slot.immediate));
  if (lease == nullptr) return std::nullopt;
  return bps_remote{lease->body.key, lease->body.key_size, slot.offset};
}

}  // namespace byteps
