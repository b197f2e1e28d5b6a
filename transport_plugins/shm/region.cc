#include "transport_plugins/shm/region.h"

#include <utility>

namespace byteps::shm {

Region* RegionTable::Add(std::byte* base, size_t size, std::optional<SharedMemory> memory) {
  const uint64_t number = next_++;
  Region* region = &regions_.try_emplace(number, &pool_).first->second;
  region->number = number;
  region->base = base;
  region->size = size;
  region->memory = std::move(memory);
  if (region->memory) shared_.emplace(base, region);
  by_handle_.emplace(region, number);
  return region;
}

void RegionTable::Remove(Region* region) {
  const auto found = by_handle_.find(region);
  if (found == by_handle_.end()) return;
  if (region->memory) shared_.erase(region->base);
  const uint64_t number = found->second;
  by_handle_.erase(found);
  regions_.erase(number);
}

void RegionTable::MakeOrdinary(Region* region) {
  if (region->memory) shared_.erase(region->base);
  region->memory.reset();
}

Region* RegionTable::Find(uint64_t number) {
  const auto found = regions_.find(number);
  return found == regions_.end() ? nullptr : &found->second;
}

Region* RegionTable::FindGranted(uint64_t number, uint64_t secret, bps_peer peer) {
  Region* region = Find(number);
  if (region == nullptr) return nullptr;
  const auto grant = region->grants.find(peer);
  return grant != region->grants.end() && grant->second.exported && grant->second.secret == secret ? region : nullptr;
}

Region* RegionTable::FindShared(const void* address, size_t size) const {
  if (shared_.empty()) return nullptr;
  auto above = shared_.upper_bound(static_cast<const std::byte*>(address));
  if (above == shared_.begin()) return nullptr;
  Region* region = std::prev(above)->second;
  return region->Contains(address, size) ? region : nullptr;
}

}  // namespace byteps::shm
