// huge_pages.h - huge pages under the buffers of a tensor that is reduced again and again.
//
//     HugePages pages;                              // one for each tensor and direction
//     pages.Use(base, bytes, &collapser);           // at each submission
//
// Reading another process's memory pins it page by page: on pages of 4 KiB that is a third to a half of all the time
// that a large tensor takes between the processes of one host (docs/performance/notes/2026-11-21-shared-memory.md).
// Allocators do not ask for huge pages; so this does, for a large buffer that has come back a few times: once, and what
// the buffer holds stays as it is (MADV_COLLAPSE; kernels before 6.1 do it when they find time). A trainer that uses
// other buffers in each round keeps small pages. Two buffers that take turns are both known. The library's own buffers,
// which other processes map, stay on small pages.
//
// Threads: none.
#ifndef BYTEPS_CORE_WORKER_MEMORY_HUGE_PAGES_H_
#define BYTEPS_CORE_WORKER_MEMORY_HUGE_PAGES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/worker/memory/page_collapser.h"

namespace byteps {

class HugePages {
 public:
  // True if it has just asked: from then on `collapser` moves what is there already.
  bool Use(const void* base, size_t bytes, PageCollapser* collapser);

 private:
  struct Buffer {
    const void* base = nullptr;
    uint32_t uses = 0;
  };
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_MEMORY_HUGE_PAGES_H_
