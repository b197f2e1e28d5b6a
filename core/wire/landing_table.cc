#include "core/wire/landing_table.h"

#include "core/wire/wire.h"

namespace byteps {

std::optional<uint32_t> LandingTable::Take() {
  uint32_t slot;
  if (!singles_.empty()) {
    slot = singles_.back();
    singles_.pop_back();
  } else if (slots_.size() < kCapacity) {
    slot = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    return std::nullopt;
  }
  slots_[slot].taken = true;
  ++taken_;
  return wire::Immediate(slot, slots_[slot].generation);
}

std::optional<uint32_t> LandingTable::TakeRange(uint32_t count) {
  if (count == 0) return std::nullopt;
  // First fit among free slots whose generation is 0 again or that were never used. Ranges are taken when peers join,
  // not per partition, so a scan is good enough.
  uint32_t run = 0;
  std::optional<uint32_t> first;
  for (uint32_t slot = 0; slot < slots_.size() && !first; ++slot) {
    run = slots_[slot].taken ? 0 : run + 1;
    if (run == count) first = slot + 1 - count;
  }
  if (!first) {
    // `run` free slots stand at the end.
    const uint32_t begin = static_cast<uint32_t>(slots_.size()) - run;
    if (begin + count > kCapacity) return std::nullopt;
    slots_.resize(begin + count);
    first = begin;
  }
  for (uint32_t slot = *first; slot < *first + count; ++slot) {
    slots_[slot] = Slot{};
    slots_[slot].taken = true;
  }
  taken_ += count;
  std::erase_if(singles_, [&](uint32_t slot) { return slot >= *first && slot < *first + count; });
  return first;
}

bool LandingTable::Valid(uint32_t immediate) const {
  const uint32_t slot = wire::ImmediateSlot(immediate);
  return slot < slots_.size() && slots_[slot].taken && slots_[slot].generation == wire::ImmediateGeneration(immediate);
}

bool LandingTable::Expects(uint32_t immediate) const {
  return Valid(immediate) && !slots_[wire::ImmediateSlot(immediate)].announced;
}

bool LandingTable::Announce(uint32_t immediate, uint64_t cookie) {
  Slot& slot = slots_[wire::ImmediateSlot(immediate)];
  slot.announced = true;
  slot.cookie = cookie;
  return slot.landed;
}

std::optional<uint64_t> LandingTable::Land(uint32_t immediate) {
  if (!Valid(immediate) || slots_[wire::ImmediateSlot(immediate)].landed) {
    ++stale_;
    return std::nullopt;
  }
  Slot& slot = slots_[wire::ImmediateSlot(immediate)];
  slot.landed = true;
  if (!slot.announced) return std::nullopt;
  return slot.cookie;
}

void LandingTable::Release(uint32_t number) {
  Slot& slot = slots_[number];
  slot.generation = (slot.generation + 1) & ((1u << wire::kGenerationBits) - 1);
  slot.taken = slot.announced = slot.landed = false;
  slot.cookie = 0;
}

uint32_t LandingTable::Renew(uint32_t immediate) {
  const uint32_t slot = wire::ImmediateSlot(immediate);
  Release(slot);
  slots_[slot].taken = true;
  return wire::Immediate(slot, slots_[slot].generation);
}

void LandingTable::Free(uint32_t immediate) {
  const uint32_t slot = wire::ImmediateSlot(immediate);
  Release(slot);
  singles_.push_back(slot);
  --taken_;
}

void LandingTable::FreeRange(uint32_t first_slot, uint32_t count) {
  for (uint32_t slot = first_slot; slot < first_slot + count; ++slot) {
    Release(slot);
    singles_.push_back(slot);
  }
  taken_ -= count;
}

}  // namespace byteps
