#include "core/worker/tensor/kept_regions.h"

namespace byteps {

absl::StatusOr<Region> KeptRegions::Take(const Tensor& tensor, Side side, std::byte* base) {
  if (const auto pair = regions_.find({&tensor.name(), side}); pair != regions_.end()) {
    for (Kept& kept : pair->second) {
      if (!kept.region || kept.base != base || kept.bytes != tensor.bytes()) continue;
      --size_;
      return std::exchange(kept.region, Region());
    }
  }
  return Region::Make(transport_, base, tensor.bytes());
}

void KeptRegions::Keep(const Tensor& tensor, Side side, const std::byte* base, Region region) {
  if (!region) return;
  if (size_ >= kMost) {
    regions_.clear();
    size_ = 0;
  }
  auto& [last, before] = regions_[{&tensor.name(), side}];
  if (last.region) {
    if (before.region) --size_;
    before = std::exchange(last, Kept());
  }
  last = {base, tensor.bytes(), std::move(region)};
  ++size_;
}

}  // namespace byteps
