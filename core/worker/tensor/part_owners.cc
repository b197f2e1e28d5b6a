#include "core/worker/tensor/part_owners.h"

#include <algorithm>

namespace byteps {

Slice SliceOf(uint64_t bytes, size_t index, size_t members) {
  constexpr uint64_t kBorder = 64;
  const uint64_t units = bytes / kBorder + (bytes % kBorder != 0 ? 1 : 0);
  // In two steps: the product could overflow.
  const auto border = [&](uint64_t i) {
    return std::min(bytes, (units / members * i + units % members * i / members) * kBorder);
  };
  return {border(index), border(index + 1)};
}

size_t LeaderOf(uint64_t name, size_t members) { return name % members; }

PartRange PartsOf(uint32_t parts, uint64_t name, size_t index, size_t members) {
  // The leader has the first run. Runs are rounded up first, so that a single part is the leader's.
  const uint64_t place = (index + members - LeaderOf(name, members)) % members;
  const auto border = [&](uint64_t i) { return static_cast<uint32_t>((parts * i + members - 1) / members); };
  return {border(place), border(place + 1)};
}

}  // namespace byteps
