// background_unmap.h - gives memory back to the kernel without waiting for it.
//
//     UnmapInBackground(base, size, std::move(fd));       // returns at once
//
// The kernel frees page by page: 2 GB take 0.5 to 1.5 s on an idle core. The thread that moves tensors also sends the
// signs of life of this process, so it cannot wait for that. Little memory goes at once; much goes on a thread that
// lives for this alone, piece by piece, so that other threads of the process map and unmap meanwhile. Where no thread
// is to be had it goes at once, too. The memory must be in use no more.
//
// Threads: any.
#ifndef BYTEPS_CORE_BASE_BACKGROUND_UNMAP_H_
#define BYTEPS_CORE_BASE_BACKGROUND_UNMAP_H_

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/unique_fd.h"

namespace byteps {

// What is smaller is gone within some 50 ms.
inline constexpr size_t kBackgroundUnmap = size_t{64} << 20;

// `base`: whole pages, `size` bytes of them. `fd`: of the file that is mapped, if it goes as well; it is closed last.
template <typename Unmap = int (*)(void*, size_t)>
void UnmapInBackground(void* base, size_t size, UniqueFd fd, Unmap unmap = ::munmap) {
  if (size < kBackgroundUnmap) {
    unmap(base, size);
    return;
  }
  constexpr size_t kPiece = size_t{8} << 20;
  const auto release = [base, unmap](size_t left) {
    // From its end on: what is left stays one mapping.
    while (left != 0) {
      const size_t kept = (left - 1) / kPiece * kPiece;
      unmap(static_cast<std::byte*>(base) + kept, left - kept);
      left = kept;
    }
  };
  // Signals belong to the host's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([release, size, fd = std::move(fd)] { release(size); }).detach();
  } catch (const std::exception&) {  // no thread, or no memory for one
    release(size);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_BACKGROUND_UNMAP_H_
