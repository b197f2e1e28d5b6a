#include "core/worker/memory/bounce_pool.h"

#include <utility>

namespace byteps {

absl::Status BouncePool::Prepare() {
  if (!memory_.empty()) return absl::OkStatus();
  AlignedMemory memory(block_bytes_ * blocks_);
  absl::StatusOr<Region> region = Region::Make(transport_, memory.data(), memory.size());
  if (!region.ok()) return region.status();
  memory_ = std::move(memory);
  region_ = *std::move(region);
  for (uint32_t block = blocks_; block-- > 0;) free_.push_back(block);
  return absl::OkStatus();
}

std::optional<uint32_t> BouncePool::Take() {
  if (free_.empty()) return std::nullopt;
  const uint32_t block = free_.back();
  free_.pop_back();
  return block;
}

}  // namespace byteps
