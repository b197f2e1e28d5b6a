#include "core/worker/memory/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>

namespace byteps {
namespace {

constexpr size_t kHugePage = PageCollapser::kHugePage;
// Below, the caches hold what matters.
constexpr size_t kLeast = 2 * kHugePage;
// A buffer that comes back this often will come back more often.
constexpr uint32_t kUses = 3;

}  // namespace

bool HugePages::Use(const void* base, size_t bytes, PageCollapser* collapser) {
  if (bytes < kLeast) return false;
  auto buffer = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& each) { return each.base == base; });
  if (buffer == buffers_.end()) {
    buffer = buffers_.begin() + static_cast<ptrdiff_t>(next_);
    next_ = (next_ + 1) % buffers_.size();
    *buffer = {base, 0};
  }
  if (buffer->uses >= kUses || ++buffer->uses < kUses) return false;
  // Whole huge pages within the buffer: what lies beside it is not touched.
  const auto first = (reinterpret_cast<uintptr_t>(base) + kHugePage - 1) / kHugePage * kHugePage;
  const auto last = (reinterpret_cast<uintptr_t>(base) + bytes) / kHugePage * kHugePage;
  if (first >= last) return false;
  void* const address = reinterpret_cast<void*>(first);
  // Memory that cannot have them says no, which is fine.
  if (::madvise(address, last - first, MADV_HUGEPAGE) != 0) return false;
  collapser->Ask(address, last - first);
  return true;
}

}  // namespace byteps
