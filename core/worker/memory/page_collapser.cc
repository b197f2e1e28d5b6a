#include "core/worker/memory/page_collapser.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace byteps {

bool PageCollapser::CollapseNow(void* address, size_t bytes) {
  return ::madvise(address, bytes, MADV_COLLAPSE) == 0 || errno != EINVAL;
}

void PageCollapser::Ask(void* first, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stop_) return;
  auto* const begin = static_cast<std::byte*>(first);
  ranges_.push_back({begin, begin + bytes / kHugePage * kHugePage});
  changed_.notify_one();
  if (thread_.joinable()) return;
  // Signals belong to the host's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "bps-pages");
  } catch (const std::system_error&) {
    ranges_.clear();  // small pages do, too
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void PageCollapser::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    ranges_.clear();
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

bool PageCollapser::idle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ranges_.empty();
}

void PageCollapser::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !ranges_.empty(); });
    if (stop_) return;
    const Range range = ranges_.front();
    const bool left = range.next != range.last;
    lock.unlock();
    const bool possible = left && collapse_(range.next, kHugePage);
    lock.lock();
    if (stop_) return;
    if (possible && range.next + kHugePage != range.last) {
      ranges_.front().next += kHugePage;
    } else {
      ranges_.pop_front();
    }
  }
}

}  // namespace byteps
