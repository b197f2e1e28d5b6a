#include "core/worker/memory/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <string>

#include "tests/support/eventually.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace byteps {
namespace {

constexpr size_t kSize = size_t{16} << 20;

// Memory that is there, in small pages.
class Buffer {
 public:
  Buffer()
      : base_(static_cast<unsigned char*>(
            ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    for (size_t i = 0; i < kSize; i += 512) base_[i] = static_cast<unsigned char>(i >> 9);
  }
  ~Buffer() { ::munmap(base_, kSize); }
  unsigned char* base() { return base_; }
  bool Intact() const {
    for (size_t i = 0; i < kSize; i += 512) {
      if (base_[i] != static_cast<unsigned char>(i >> 9)) return false;
    }
    return true;
  }
  // KiB of huge pages in the mapping that holds it.
  size_t Huge() const {
    std::ifstream maps("/proc/self/smaps");
    bool here = false;
    const auto address = reinterpret_cast<uintptr_t>(base_);
    for (std::string line; std::getline(maps, line);) {
      const size_t dash = line.find('-');
      if (dash != std::string::npos && line.find(':') > line.find(' ')) {
        const uintptr_t first = std::stoull(line.substr(0, dash), nullptr, 16);
        const uintptr_t last = std::stoull(line.substr(dash + 1, line.find(' ') - dash - 1), nullptr, 16);
        here = first <= address && address < last;
      } else if (here && line.rfind("AnonHugePages:", 0) == 0) {
        return std::stoull(line.substr(14));
      }
    }
    return 0;
  }

 private:
  unsigned char* const base_;
};

TEST(HugePagesTest, ABufferThatComesBackGetsThemOnceAndKeepsItsContent) {
  Buffer probe;
  const bool possible = ::madvise(probe.base(), kSize, MADV_HUGEPAGE) == 0;
  const bool at_once = possible && ::madvise(probe.base(), kSize, MADV_COLLAPSE) == 0 && probe.Huge() > 0;
  Buffer buffer;
  PageCollapser collapser;
  HugePages pages;
  EXPECT_FALSE(pages.Use(buffer.base(), kSize, &collapser));
  EXPECT_FALSE(pages.Use(buffer.base(), kSize, &collapser));
  EXPECT_EQ(pages.Use(buffer.base(), kSize, &collapser), possible);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(pages.Use(buffer.base(), kSize, &collapser)) << "asked again";
  EXPECT_TRUE(buffer.Intact());
  if (at_once) {
    EXPECT_TRUE(Eventually([&] { return collapser.idle(); }));
    EXPECT_GT(buffer.Huge(), 0u);
    EXPECT_TRUE(buffer.Intact());
  }
}

// A kernel that takes as long as the test wants: who submits does not wait for it, however large the buffer.
TEST(HugePagesTest, TheMoveIsLeftToTheCollapser) {
  Buffer buffer;
  if (::madvise(buffer.base(), kSize, MADV_HUGEPAGE) != 0) GTEST_SKIP() << "no huge pages here";
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::atomic<size_t> moved{0};
  PageCollapser collapser([&](void*, size_t bytes) {
    gone.wait();
    moved += bytes;
    return true;
  });
  HugePages pages;
  for (int i = 0; i < 3; ++i) pages.Use(buffer.base(), kSize, &collapser);
  EXPECT_FALSE(collapser.idle());
  EXPECT_EQ(moved, 0u);
  go.set_value();
  EXPECT_TRUE(Eventually([&] { return collapser.idle(); }));
  EXPECT_GE(moved, kSize - PageCollapser::kHugePage);  // but for what is not aligned
}

TEST(HugePagesTest, TwoThatTakeTurnsAreKnownAndOthersAreLeftAlone) {
  PageCollapser collapser;
  HugePages pages;
  Buffer one, other;
  size_t asked = 0;
  for (int i = 0; i < 4; ++i) {
    asked += pages.Use(one.base(), kSize, &collapser);
    asked += pages.Use(other.base(), kSize, &collapser);
  }
  Buffer probe;
  EXPECT_EQ(asked, ::madvise(probe.base(), kSize, MADV_HUGEPAGE) == 0 ? 2u : 0u);
  // Always somewhere else, and too small.
  HugePages restless;
  for (size_t i = 0; i < 64; ++i) EXPECT_FALSE(restless.Use(one.base() + i % 4 * 4096, kSize - 4 * 4096, &collapser));
  HugePages small;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(small.Use(one.base(), size_t{1} << 20, &collapser));
}

}  // namespace
}  // namespace byteps
