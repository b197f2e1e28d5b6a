#include "core/worker/tensor/kept_regions.h"

namespace byteps {

absl::StatusOr<Region> KeptRegions::Take(const TensorName& name, Side side, std::span<std::byte> memory) {
  if (const auto pair = regions_.find({&name, side}); pair != regions_.end()) {
    for (Kept& kept : pair->second) {
      if (!kept.region || kept.base != memory.data() || kept.bytes != memory.size()) continue;
      --size_;
      return std::exchange(kept.region, Region());
    }
  }
  return Region::Make(transport_, memory.data(), memory.size());
}

void KeptRegions::Keep(const TensorName& name, Side side, std::span<const std::byte> memory, Region region) {
  if (!region) return;
  if (size_ >= kMost) {
    regions_.clear();
    size_ = 0;
  }
  auto& [last, before] = regions_[{&name, side}];
  if (last.region) {
    if (before.region) --size_;
    before = std::exchange(last, Kept());
  }
  last = {memory.data(), memory.size(), std::move(region)};
  ++size_;
}

}  // namespace byteps
