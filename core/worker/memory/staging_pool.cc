#include "core/worker/memory/staging_pool.h"

#include <utility>

namespace byteps {

absl::StatusOr<Staging> StagingPool::Take(size_t bytes) {
  auto fits = idle_.lower_bound(bytes);
  // Not twice as large as needed: another tensor may want it.
  if (fits != idle_.end() && fits->first / 2 <= bytes) {
    Staging staging = std::move(fits->second);
    idle_bytes_ -= staging.size;
    idle_.erase(fits);
    return staging;
  }
  Staging staging;
  absl::StatusOr<Region> region = Region::Allocate(transport_, bytes, &staging.base);
  if (!region.ok()) return region.status();
  staging.region = *std::move(region);
  staging.size = bytes;
  return staging;
}

void StagingPool::Return(Staging staging) {
  if (idle_bytes_ + staging.size > kIdleBytes) return;
  idle_bytes_ += staging.size;
  const size_t size = staging.size;
  idle_.emplace(size, std::move(staging));
}

}  // namespace byteps
