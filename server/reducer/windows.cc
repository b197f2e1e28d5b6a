#include "server/reducer/windows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace byteps {

absl::Status Windows::Open(PeerId peer, uint32_t slots, uint64_t slot_bytes) {
  absl::StatusOr<RegisteredMemory> memory = pool_->MakeWindow(slots * slot_bytes);
  if (!memory.ok()) return memory.status();
  const std::optional<uint32_t> first = table_.TakeRange(slots);
  if (!first) {
    return absl::ResourceExhaustedError(absl::StrCat("all ", LandingTable::kCapacity, " landing slots are lent"));
  }
  auto window = std::make_unique<Window>();
  window->peer = peer;
  window->first_slot = *first;
  window->slots = slots;
  window->slot_bytes = slot_bytes;
  window->memory = *std::move(memory);
  if (slots_.size() < *first + slots) slots_.resize(*first + slots);
  for (uint32_t slot = *first; slot < *first + slots; ++slot) slots_[slot] = Slot{window.get()};
  const RegisteredMemory& lent = window->memory;
  windows_[peer] = std::move(window);
  return endpoint_->Lend(peer, lent.region(), lent.offset(), slot_bytes, *first, slots);
}

void Windows::Close(PeerId peer) {
  auto it = windows_.find(peer);
  if (it == windows_.end()) return;
  const Window& window = *it->second;
  for (uint32_t slot = window.first_slot; slot < window.first_slot + window.slots; ++slot) slots_[slot] = Slot{};
  table_.FreeRange(window.first_slot, window.slots);
  windows_.erase(it);
}

bool Windows::Expects(PeerId peer, uint32_t immediate) const {
  if (!table_.Expects(immediate)) return false;
  const Window* window = slots_[wire::ImmediateSlot(immediate)].window;
  return window != nullptr && window->peer == peer;
}

bool Windows::Announce(uint32_t immediate, Round* round, uint32_t rank) {
  Slot& slot = At(immediate);
  slot.use = {round, rank};
  slot.landed = table_.Announce(immediate, 0);
  return slot.landed;
}

std::optional<Windows::Use> Windows::Land(uint32_t immediate) {
  if (!table_.Land(immediate)) return std::nullopt;
  Slot& slot = At(immediate);
  slot.landed = true;
  if (slot.use.round != nullptr) return slot.use;
  Return(immediate);
  return std::nullopt;
}

std::span<std::byte> Windows::Memory(uint32_t immediate) const {
  const uint32_t slot = wire::ImmediateSlot(immediate);
  const Window& window = *slots_[slot].window;
  return {window.memory.data() + (slot - window.first_slot) * window.slot_bytes, window.slot_bytes};
}

void Windows::Hold(Time now, uint32_t immediate) {
  Slot& slot = At(immediate);
  if (slot.held) return;
  slot.held = true;
  slot.held_since = now;
  Window& window = *slot.window;
  const bool few = 2 * window.held <= window.slots;
  ++window.held;
  if (2 * window.held <= window.slots) return;
  Time oldest = now;
  // Later ones are younger.
  for (uint32_t other = window.first_slot; few && other < window.first_slot + window.slots; ++other) {
    if (slots_[other].held) oldest = std::min(oldest, slots_[other].held_since);
  }
  next_stuck_ = std::min(next_stuck_, oldest + kLong);
  if (window.held < window.slots) return;
  window.full_since = now;
  next_stuck_ = std::min(next_stuck_, now + kPatience);
}

bool Windows::Last(PeerId peer) const {
  auto it = windows_.find(peer);
  return it == windows_.end() || it->second->held + 1 >= it->second->slots;
}

const std::vector<Windows::StuckUse>& Windows::Stuck(Time now) {
  stuck_.clear();
  if (now < next_stuck_) return stuck_;
  next_stuck_ = kNever;
  for (const auto& [peer, window] : windows_) {
    if (2 * window->held <= window->slots) continue;
    const Time all = After(window->full_since, kPatience);
    for (uint32_t slot = window->first_slot; slot < window->first_slot + window->slots; ++slot) {
      if (!slots_[slot].held) continue;
      const Time at = std::min(all, slots_[slot].held_since + kLong);
      if (at <= now) {
        stuck_.push_back({slots_[slot].use, all <= now});
      } else {
        next_stuck_ = std::min(next_stuck_, at);
      }
    }
  }
  return stuck_;
}

void Windows::Return(uint32_t immediate) {
  Slot& slot = At(immediate);
  if (slot.held) {
    --slot.window->held;
    slot.window->full_since = kNever;
  }
  slot.use = {};
  slot.landed = slot.held = false;
  endpoint_->Return(slot.window->peer, table_.Renew(immediate));
}

void Windows::Abandon(uint32_t immediate) {
  Slot& slot = At(immediate);
  slot.use = {};
  if (slot.landed) Return(immediate);
}

}  // namespace byteps
