// page_collapser.h - a thread that moves memory onto huge pages, a little at a time.
//
//     PageCollapser collapser;                    // no thread yet
//     collapser.Ask(first, bytes);                // any thread; returns at once
//     collapser.Stop();                           // what is left stays on small pages
//
// The kernel allocates, copies and maps each huge page within the call that asks for it: 2 GB take seconds. The thread
// that moves tensors also sends the signs of life of this process, so it cannot wait for that. Contents do not change;
// memory that is unmapped meanwhile is an error of that call, which is ignored.
//
// Threads: any; the collapser has one of its own, from the first Ask on.
#ifndef BYTEPS_CORE_WORKER_MEMORY_PAGE_COLLAPSER_H_
#define BYTEPS_CORE_WORKER_MEMORY_PAGE_COLLAPSER_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace byteps {

class PageCollapser {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;

  // One call of the kernel for `bytes` at `address`, whole huge pages. False: it cannot be had here at all.
  using Collapse = std::function<bool(void* address, size_t bytes)>;

  explicit PageCollapser(Collapse collapse = CollapseNow) : collapse_(std::move(collapse)) {}
  ~PageCollapser() { Stop(); }
  PageCollapser(const PageCollapser&) = delete;
  PageCollapser& operator=(const PageCollapser&) = delete;

  // `first`: at a border of huge pages. Nothing happens where no thread is to be had.
  void Ask(void* first, size_t bytes);
  // Ends the thread, at the latest after the page that it is at.
  void Stop();
  // All that was asked for is done, or given up.
  bool idle() const;

  // MADV_COLLAPSE, of Linux 6.1 and newer.
  static bool CollapseNow(void* address, size_t bytes);

 private:
  struct Range {
    std::byte* next;
    std::byte* last;
  };
  void Run();

  const Collapse collapse_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Range> ranges_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_MEMORY_PAGE_COLLAPSER_H_
