// region.h - memory of this process that peers may reach, and what each of them was given.
//
//     Region* region = table.Add(base, size, std::nullopt);       // ordinary memory; or shared memory, moved in
//     Grant& grant = region->grants[peer];                        // the same for every call
//     table.FindGranted(key.region, key.secret, peer)             // nullptr: no such right (any more)
//     table.FindShared(address, size, &offset)                    // the shared region that holds these bytes
//
// Ordinary memory is registered anew whenever a tensor lies elsewhere, so what that takes comes from a pool, which
// keeps what it has.
//
// Threads: none.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_REGION_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_REGION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <unordered_map>

#include "abi/transport.h"
#include "transport_plugins/shm/channel.h"
#include "transport_plugins/shm/shared_memory.h"

namespace byteps::shm {

// What one peer was given.
struct Grant {
  uint64_t secret = 0;
  uint32_t entry = kNoEntry;  // of that peer's ledger
  bool shown = false;         // shared memory: its descriptor is on the way
  bool exported = false;
};

struct Region {
  explicit Region(std::pmr::memory_resource* pool) : grants(pool) {}

  uint64_t number = 0;
  std::byte* base = nullptr;
  size_t size = 0;
  std::optional<SharedMemory> memory;
  std::pmr::map<bps_peer, Grant> grants;

  bool Contains(const void* address, size_t bytes) const {
    const auto* first = static_cast<const std::byte*>(address);
    return first >= base && bytes <= size && static_cast<size_t>(first - base) <= size - bytes;
  }
};

class RegionTable {
 public:
  Region* Add(std::byte* base, size_t size, std::optional<SharedMemory> memory);
  void Remove(Region* region);
  // Shared memory is not shared any more.
  void MakeOrdinary(Region* region);
  bool Has(const Region* region) const { return by_handle_.count(region) != 0; }

  Region* Find(uint64_t number);
  Region* FindGranted(uint64_t number, uint64_t secret, bps_peer peer);
  Region* FindShared(const void* address, size_t size) const;

  template <typename Visit>
  void ForEach(Visit visit) {
    for (auto& [number, region] : regions_) visit(&region);
  }

 private:
  std::pmr::unsynchronized_pool_resource pool_;
  uint64_t next_ = 1;
  std::pmr::unordered_map<uint64_t, Region> regions_{&pool_};
  std::pmr::unordered_map<const Region*, uint64_t> by_handle_{&pool_};
  std::map<const std::byte*, Region*> shared_;  // by address
};

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_REGION_H_
