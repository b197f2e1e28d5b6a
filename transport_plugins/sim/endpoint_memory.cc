// Memory of a simulated endpoint: regions, keys, and who may reach them.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "abi/byteps.h"
#include "transport_plugins/sim/endpoint.h"

#ifndef BPS_PEER_UNKNOWN
#define BPS_PEER_UNKNOWN 0xffffffffu
#endif

namespace byteps::sim {
namespace {

constexpr uint32_t kKeyMagic = 0x4b4d4953;  // "SIMK"
constexpr size_t kKeyBytes = 16;            // magic, zero, cookie; the rest of a key is zero

}  // namespace

// ---- Endpoint: memory -----------------------------------------------------------------------------------------------

int32_t Endpoint::Register(void* base, size_t size, bps_region** region) {
  const uint64_t id = world_->NewId();
  ++world_->stats().registrations[node_];
  regions_.emplace(id, Region{static_cast<std::byte*>(base), size, nullptr, {}});
  *region = reinterpret_cast<bps_region*>(id);
  return BPS_OK;
}

int32_t Endpoint::Allocate(size_t size, bps_region** region, void** base) {
  auto owned = std::make_unique<std::byte[]>(size);
  *base = owned.get();
  const int32_t code = Register(*base, size, region);
  regions_.at(ToId(*region)).owned = std::move(owned);
  return code;
}

void Endpoint::Unregister(bps_region* region) {
  const uint64_t id = ToId(region);
  auto region_entry = regions_.find(id);
  if (region_entry == regions_.end()) return Violation("unreg of a region that is not registered here");
  for (auto& [number, operation] : operations_) {
    if (operation.region != id) continue;
    operation.watched = false;
    if (operation.state != OpState::kFinished) Complete(number, BPS_CANCELLED);
  }
  for (const uint64_t cookie : region_entry->second.cookies) exports_.at(cookie).valid = false;
  regions_.erase(region_entry);
}

int32_t Endpoint::ExportKey(bps_region* region, bps_peer number, void* key) {
  auto peer = peers_.find(number);
  if (regions_.count(ToId(region)) == 0 || peer == peers_.end()) {
    Violation("export_key of a region or for a peer (" + std::to_string(number) + ") that is not known here");
    return BPS_INVALID_ARGUMENT;
  }
  // Lost, as the next event tells, or ours no more.
  if (peer->second.state == PeerState::kDown || peer->second.state == PeerState::kDisconnected) return BPS_UNAVAILABLE;
  const uint64_t cookie = world_->random().Next();
  exports_.emplace(cookie, Export{ToId(region), number, true});
  regions_.at(ToId(region)).cookies.push_back(cookie);
  std::memset(key, 0, options_.key_size);
  std::memcpy(key, &kKeyMagic, sizeof kKeyMagic);
  std::memcpy(static_cast<std::byte*>(key) + 8, &cookie, sizeof cookie);
  return BPS_OK;
}

void Endpoint::InvalidateKeys() {
  for (auto& [cookie, shown] : exports_) shown.valid = false;
}

uint64_t Endpoint::Cookie(const bps_remote* remote) {
  uint32_t magic = 0;
  uint64_t cookie = 0;
  if (remote->key_size >= kKeyBytes && remote->key_size <= BPS_TRANSPORT_MAX_KEY) {
    std::memcpy(&magic, remote->key, sizeof magic);
    std::memcpy(&cookie, static_cast<const std::byte*>(remote->key) + 8, sizeof cookie);
  }
  if (magic != kKeyMagic) Violation("used a remote key that is none of this fabric");
  return cookie;
}

std::byte* Endpoint::Lookup(uint64_t from, uint64_t cookie, uint64_t offset, size_t size, bps_peer* number) {
  auto shown = exports_.find(cookie);
  if (shown == exports_.end()) {
    Violation("endpoint " + std::to_string(from) + " used a key that was never exported here");
    return nullptr;
  }
  *number = shown->second.peer;
  if (peers_.at(*number).endpoint != from) {
    Violation("endpoint " + std::to_string(from) + " used a key that was exported to peer " + std::to_string(*number));
    return nullptr;
  }
  if (!shown->second.valid) return nullptr;
  const Region& region = regions_.at(shown->second.region);
  if (offset > region.size || size > region.size - offset) {
    Violation("peer " + std::to_string(*number) + " accessed bytes " + std::to_string(offset) + " to " +
              std::to_string(offset + size) + " of a region of " + std::to_string(region.size) + " bytes");
    return nullptr;
  }
  return region.base + offset;
}

int32_t Endpoint::Resolve(bps_peer number, const bps_remote* remote, size_t size, std::byte** base) {
  const int32_t code = Find(number, remote, size, base);
  return code == BPS_OK && refused_.count(peers_.at(number).node) != 0 ? BPS_UNIMPLEMENTED : code;
}

bool Endpoint::WritesRefused(bps_peer number) const {
  const auto peer = peers_.find(number);
  return peer != peers_.end() && writes_refused_.count(peer->second.node) != 0;
}

int32_t Endpoint::Map(bps_peer number, const bps_remote* remote, size_t size, std::byte** base) {
  if (const int32_t code = Find(number, remote, size, base); code != BPS_OK) return code;
  if (options_.map_delay != 0) {
    const Time at = mappable_at_.emplace(Cookie(remote), world_->now() + options_.map_delay).first->second;
    if (world_->now() < at) return BPS_TRANSPORT_AGAIN;
  }
  ++world_->stats().mapped;
  return BPS_OK;
}

int32_t Endpoint::Find(bps_peer number, const bps_remote* remote, size_t size, std::byte** base) {
  auto peer = peers_.find(number);
  if (peer == peers_.end()) {
    Violation("use of unknown peer " + std::to_string(number));
    return BPS_INVALID_ARGUMENT;
  }
  Endpoint* target = endpoints_->Find(peer->second.endpoint);
  if (peer->second.state != PeerState::kUp || target == nullptr || target->dead_) return BPS_UNAVAILABLE;
  bps_peer unused;
  *base = target->Lookup(id_, Cookie(remote), remote->offset, size, &unused);
  if (*base == nullptr) return BPS_PERMISSION_DENIED;
  const Region& region = target->regions_.at(target->exports_.at(Cookie(remote)).region);
  return options_.copy_refused && region.owned == nullptr ? BPS_UNIMPLEMENTED : BPS_OK;
}

}  // namespace byteps::sim
