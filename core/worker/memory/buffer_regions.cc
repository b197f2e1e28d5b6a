#include "core/worker/memory/buffer_regions.h"

#include <utility>

namespace byteps {

absl::StatusOr<BufferRegions::Place> BufferRegions::Find(const std::shared_ptr<Buffer>& buffer, const void* at,
                                                         size_t bytes) {
  if (buffer == nullptr || bytes == 0 || !buffer->Contains(at, bytes)) return Place{};
  Region& region = regions_[buffer];
  if (!region) {
    absl::StatusOr<Region> made = buffer->fd() < 0
                                      ? Region::Make(transport_, buffer->data(), buffer->size())
                                      : Region::MakeShared(transport_, buffer->data(), buffer->size(), buffer->fd());
    if (!made.ok()) {
      regions_.erase(buffer);
      return made.status();
    }
    region = *std::move(made);
  }
  return Place{region.get(), static_cast<uint64_t>(static_cast<const std::byte*>(at) - buffer->data())};
}

}  // namespace byteps
