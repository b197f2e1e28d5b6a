#include "core/worker/servers/server_lanes.h"

#include "absl/strings/str_cat.h"
#include "core/wire/message.h"

namespace byteps {

void ServerLane::Send(wire::RecordType type, std::span<const std::byte> fixed, std::span<const std::byte> payload) {
  queued_bytes += RecordSize(fixed.size(), payload.size());
  carrier->endpoint().Send(id, type, fixed, payload);
}

void ServerLane::SendFor(uint64_t task, wire::RecordType type, std::span<const std::byte> fixed,
                         std::span<const std::byte> payload) {
  Send(type, fixed, payload);
  leaving.emplace_back(queued_bytes, task);
}

ServerLane& ServerLanes::Add(PeerId id, Carrier* carrier, std::string description) {
  ServerLane lane(&memory_);
  lane.id = id;
  lane.carrier = carrier;
  lane.description = std::move(description);
  index_[id] = lanes_.size();
  return lanes_.emplace_back(std::move(lane));
}

ServerLane* ServerLanes::Find(PeerId id) {
  const auto found = index_.find(id);
  return found == index_.end() ? nullptr : &lanes_[found->second];
}

std::string ServerLanes::Describe(PeerId id) const {
  const ServerLane* lane = Find(id);
  return lane == nullptr ? absl::StrCat("peer ", id) : lane->description;
}

bool ServerLanes::MarkReady(PeerId id) {
  ServerLane* lane = Find(id);
  if (lane == nullptr || lane->ready) return false;
  lane->ready = true;
  ++ready_;
  return true;
}

std::string ServerLanes::Missing() const {
  std::string text;
  for (const ServerLane& lane : lanes_) {
    if (!lane.ready) absl::StrAppend(&text, text.empty() ? "" : ", ", lane.description);
  }
  return text;
}

}  // namespace byteps
