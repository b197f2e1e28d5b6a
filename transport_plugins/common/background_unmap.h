// background_unmap.h - gives memory back to the kernel without waiting for it.
//
//     UnmapInBackground(base, size, std::move(fd));       // returns at once
//
// The kernel frees page by page: 2 GB take 0.5 to 1.5 s on an idle core. The thread that moves tensors also sends the
// signs of life of this process, so it cannot wait for that. Little memory goes at once; much goes on a thread that
// lives as long as there is some, piece by piece, so that other threads of the process map and unmap meanwhile. One
// thread keeps up, since to fill memory takes longer than to free it. Where no thread is to be had the caller waits.
// The memory must be in use no more.
//
// Threads: any. A child that was forked meanwhile keeps what its parent was about to give back until it ends, and has a
// thread of its own for what it maps itself.
#ifndef BYTEPS_TRANSPORT_PLUGINS_COMMON_BACKGROUND_UNMAP_H_
#define BYTEPS_TRANSPORT_PLUGINS_COMMON_BACKGROUND_UNMAP_H_

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "transport_plugins/common/unique_fd.h"

namespace byteps::transports {

// What is smaller is gone within some 50 ms.
inline constexpr size_t kBackgroundUnmap = size_t{64} << 20;

// What is to go: whole pages, and the file that is closed behind them.
struct UnmapJob {
  std::byte* base;
  size_t size;
  UniqueFd fd;
  std::function<int(void*, size_t)> unmap;
  UnmapJob* next = nullptr;

  void Run() const {
    constexpr size_t kPiece = size_t{8} << 20;
    // From its end on: what is left stays one mapping.
    for (size_t left = size; left != 0;) {
      const size_t kept = (left - 1) / kPiece * kPiece;
      unmap(base + kept, left - kept);
      left = kept;
    }
  }
};

// The address of the newest job, which leads to those before it; 0: none waits; kNoUnmapThread: and nothing will look.
inline constexpr uintptr_t kNoUnmapThread = 1;
inline std::atomic<uintptr_t> unmap_jobs{kNoUnmapThread};
// Set when fork() resets the list in the child, which has not the thread.
inline const int unmap_fork_handler = pthread_atfork(nullptr, nullptr, [] { unmap_jobs.store(kNoUnmapThread); });

inline void RunUnmapJobs() {
  while (true) {
    auto* job = reinterpret_cast<UnmapJob*>(unmap_jobs.exchange(0));
    uintptr_t none = 0;
    if (job == nullptr && unmap_jobs.compare_exchange_strong(none, kNoUnmapThread)) return;
    while (job != nullptr) {
      const std::unique_ptr<UnmapJob> own(std::exchange(job, job->next));
      own->Run();
    }
  }
}

// `base`: whole pages, `size` bytes of them. `fd`: of the file that is mapped, if it goes as well; it is closed last.
template <typename Unmap = int (*)(void*, size_t)>
void UnmapInBackground(void* base, size_t size, UniqueFd fd, Unmap unmap = ::munmap) {
  if (size < kBackgroundUnmap) {
    unmap(base, size);
    return;
  }
  UnmapJob given{static_cast<std::byte*>(base), size, std::move(fd), std::move(unmap)};
  auto* const job = new (std::nothrow) UnmapJob(std::move(given));
  if (job == nullptr) return given.Run();
  uintptr_t before = unmap_jobs.load();
  do {
    job->next = before == kNoUnmapThread ? nullptr : reinterpret_cast<UnmapJob*>(before);
  } while (!unmap_jobs.compare_exchange_weak(before, reinterpret_cast<uintptr_t>(job)));
  if (before != kNoUnmapThread) return;  // a thread is at work
  // Signals belong to the host's own threads.
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  try {
    std::thread(RunUnmapJobs).detach();
  } catch (const std::exception&) {  // no thread, or no memory for one
    RunUnmapJobs();
  }
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

}  // namespace byteps::transports

#endif  // BYTEPS_TRANSPORT_PLUGINS_COMMON_BACKGROUND_UNMAP_H_
