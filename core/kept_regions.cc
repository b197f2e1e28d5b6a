#include "core/kept_regions.h"

#include <algorithm>

namespace byteps {

absl::StatusOr<Region> KeptRegions::Take(const Tensor& tensor, Side side, std::byte* base) {
  if (const auto pair = regions_.find({&tensor, side}); pair != regions_.end()) {
    for (Kept& kept : pair->second) {
      if (kept.region && kept.base == base) return std::exchange(kept.region, Region());
    }
  }
  return Region::Make(transport_, base, tensor.bytes());
}

void KeptRegions::Keep(const Tensor& tensor, Side side, const std::byte* base, Region region) {
  if (!region || (transport_->caps().flags & BPS_TRANSPORT_REG_ADDRESSES) == 0) return;
  auto& [last, before] = regions_[{&tensor, side}];
  if (last.region) before = std::exchange(last, Kept());
  last = {base, std::move(region)};
}

size_t KeptRegions::size() const {
  size_t count = 0;
  for (const auto& [whose, pair] : regions_) {
    count += static_cast<size_t>(
        std::count_if(pair.begin(), pair.end(), [](const Kept& kept) { return bool{kept.region}; }));
  }
  return count;
}

}  // namespace byteps
