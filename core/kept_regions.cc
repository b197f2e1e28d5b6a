#include "core/kept_regions.h"

#include <algorithm>

namespace byteps {

absl::StatusOr<Region> KeptRegions::Take(const Tensor& tensor, Side side, std::byte* base) {
  if (const auto kept = regions_.find({&tensor, side}); kept != regions_.end()) {
    Region region = std::move(kept->second.region);
    if (region && kept->second.base == base) return region;
  }
  return Region::Make(transport_, base, tensor.bytes());
}

void KeptRegions::Keep(const Tensor& tensor, Side side, const std::byte* base, Region region) {
  if (!region || (transport_->caps().flags & BPS_TRANSPORT_REG_ADDRESSES) == 0) return;
  Kept& kept = regions_[{&tensor, side}];
  kept.base = base;
  kept.region = std::move(region);
}

size_t KeptRegions::size() const {
  return static_cast<size_t>(
      std::count_if(regions_.begin(), regions_.end(), [](const auto& each) { return bool{each.second.region}; }));
}

}  // namespace byteps
