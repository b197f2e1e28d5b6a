// device_regions.h - the registrations of GPU memory with one transport: of whole allocations, kept from one operation
// to the next.
//
//     DeviceRegions regions(&transport);
//     absl::StatusOr<std::shared_ptr<Region>> region = regions.Find(allocation);     // hold it while it is used
//     regions.Forget(allocation);        // the fence, as soon as nobody holds the registration any more
//
// An allocation is known by its identity, and not by its address, which may be given out again. Frameworks take memory
// in large allocations and keep them, so the steady state registers nothing. What lies where a new allocation lies has
// been given back, and is let go of; beyond kMost the one that was used least recently is.
//
// Threads: those of the transport. Destroyed before it.
#ifndef BYTEPS_CORE_WORKER_MEMORY_DEVICE_REGIONS_H_
#define BYTEPS_CORE_WORKER_MEMORY_DEVICE_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/status/statusor.h"
#include "core/plugin/gpu.h"
#include "core/plugin/region.h"
#include "core/plugin/transport.h"

namespace byteps {

// An allocation of a GPU's memory, as its driver tells.
struct DeviceAllocation {
  Gpu* gpu = nullptr;  // outlives the operation
  std::byte* base = nullptr;
  uint64_t size = 0;
  uint64_t identity = 0;  // 0: not known; then it cannot be registered
};

class DeviceRegions {
 public:
  static constexpr size_t kMost = 256;

  explicit DeviceRegions(Transport* transport) : transport_(transport) {}

  // Errors: those of the transport; UNIMPLEMENTED of an allocation without an identity.
  absl::StatusOr<std::shared_ptr<Region>> Find(const DeviceAllocation& allocation);
  // Its next Find registers it anew.
  void Forget(const DeviceAllocation& allocation);
  size_t size() const { return all_.size(); }

 private:
  struct Kept {
    DeviceAllocation allocation;
    std::shared_ptr<Region> region;
  };

  absl::StatusOr<std::shared_ptr<Region>> Register(const DeviceAllocation& allocation) const;

  Transport* const transport_;
  std::list<Kept> all_;  // the one that was used last first
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_MEMORY_DEVICE_REGIONS_H_
