#include "core/worker/device/pinned_stock.h"

#include <algorithm>
#include <bit>

namespace byteps {
namespace {

constexpr uint64_t kLeast = 4096;

}  // namespace

uint64_t PinnedStock::Rounded(uint64_t bytes) {
  if (bytes <= kLeast) return kLeast;
  const uint64_t step = std::max(kLeast, std::bit_floor(bytes - 1) / 4);
  return (bytes + step - 1) / step * step;
}

std::unique_ptr<PinnedArea> PinnedStock::Find(int32_t gpu, uint64_t rounded, uint64_t owner) {
  for (auto at = idle_.lower_bound({gpu, owner, rounded});
       at != idle_.end() && at->first <= Key(gpu, owner, 2 * rounded);) {
    std::unique_ptr<PinnedArea> area = std::move(at->second.area);
    at = idle_.erase(at);
    if (!area->buffer()->exchanged()) return area;
    // Its pages are others than those that are pinned.
    PutAside(std::move(area));
  }
  return nullptr;
}

// What has been used once, by whoever does not seem to come again.
void PinnedStock::Release(Time now) {
  if (now < After(released_at_, kLookTime)) return;
  released_at_ = now;
  const auto once = [](const auto& entry) { return std::get<1>(entry.first) != 0 && !entry.second.area->again; };
  const Time keep = KeepTime(static_cast<size_t>(std::count_if(idle_.begin(), idle_.end(), once)));
  for (auto at = idle_.begin(); at != idle_.end();) {
    const auto next = std::next(at);
    const auto [gpu, owner, bytes] = at->first;
    if (once(*at) && now >= After(at->second.since, keep)) {
      auto node = idle_.extract(at);
      node.key() = {gpu, 0, bytes};
      idle_.insert(std::move(node));
    }
    at = next;
  }
}

absl::StatusOr<std::unique_ptr<PinnedArea>> PinnedStock::Take(Time now, const std::shared_ptr<Gpu>& gpu, uint64_t bytes,
                                                              uint64_t owner) {
  const uint64_t rounded = Rounded(bytes);
  std::unique_ptr<PinnedArea> area = owner == 0 ? nullptr : Find(gpu->index(), rounded, owner);
  if (area != nullptr) {
    area->again = true;
    return area;
  }
  Release(now);
  area = Find(gpu->index(), rounded, 0);
  if (area == nullptr) return PinnedArea::Make(gpu, buffers_, rounded);
  area->again = false;
  return area;
}

void PinnedStock::GiveBack(Time now, std::unique_ptr<PinnedArea> area, uint64_t owner) {
  const Key key(area->gpu().index(), owner, area->buffer()->size());
  idle_.emplace(key, Idle{std::move(area), now});
}

}  // namespace byteps
