#include "core/base/group_ranges.h"

namespace byteps {

std::string GroupRanges(std::span<const uint32_t> sizes, size_t most) {
  std::string text;
  uint64_t first = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i == most) return text + " and " + std::to_string(sizes.size() - most) + " more";
    const uint64_t last = first + sizes[i] - 1;
    text += (i == 0 ? "" : ", ") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
    first = last + 1;
  }
  return text;
}

}  // namespace byteps
