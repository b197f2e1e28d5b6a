#include "core/worker/memory/device_regions.h"

#include <algorithm>
#include <utility>

#include "abi/byteps.h"
#include "core/base/unique_fd.h"

namespace byteps {
namespace {

bool Same(const DeviceAllocation& a, const DeviceAllocation& b) {
  return a.identity == b.identity && a.base == b.base && a.size == b.size && a.gpu->index() == b.gpu->index();
}

// Two that are there at once never do.
bool Overlap(const DeviceAllocation& a, const DeviceAllocation& b) {
  return a.base < b.base + b.size && b.base < a.base + a.size;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Region>> DeviceRegions::Find(const DeviceAllocation& allocation) {
  if (allocation.identity == 0) {
    return absl::UnimplementedError(
        "its device plugin does not tell this memory from later memory at the same address (so it is with what is "
        "mapped "
        "piece by piece, as by PyTorch's expandable_segments)");
  }
  const auto found =
      std::find_if(all_.begin(), all_.end(), [&](const Kept& kept) { return Same(kept.allocation, allocation); });
  if (found != all_.end()) {
    all_.splice(all_.begin(), all_, found);
    return all_.front().region;
  }
  all_.remove_if([&](const Kept& kept) { return Overlap(kept.allocation, allocation); });
  absl::StatusOr<std::shared_ptr<Region>> made = Register(allocation);
  if (!made.ok()) return made.status();
  if (all_.size() == kMost) all_.pop_back();
  all_.push_front({allocation, *made});
  return *std::move(made);
}

absl::StatusOr<std::shared_ptr<Region>> DeviceRegions::Register(const DeviceAllocation& allocation) const {
  // Without one the transport finds the memory by its address, if it can.
  const absl::StatusOr<UniqueFd> dmabuf = allocation.gpu->DmaBuf(allocation.base, allocation.size);
  bps_device_memory memory = {};
  memory.struct_size = sizeof memory;
  memory.base = allocation.base;
  memory.size = allocation.size;
  memory.type = BPS_CUDA;
  memory.id = allocation.gpu->index();
  memory.dmabuf = dmabuf.ok() ? dmabuf->get() : -1;
  absl::StatusOr<Region> region = Region::MakeDevice(transport_, memory);
  if (!region.ok()) return region.status();
  return std::make_shared<Region>(*std::move(region));
}

void DeviceRegions::Forget(const DeviceAllocation& allocation) {
  all_.remove_if([&](const Kept& kept) { return Same(kept.allocation, allocation); });
}

}  // namespace byteps
