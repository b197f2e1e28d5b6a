// fork_guard.h - tells a forked child that what it looks at belongs to its parent.
//
//     ForkGuard guard;                  // when the object is made
//     if (guard.in_child()) ...         // one load: costs nothing on the hot path
//
// The guard is a page of its own that the kernel empties in a forked child (MADV_WIPEONFORK), so there is neither a
// handler left in the process nor a system call per question. Where the kernel cannot do that, the process number is
// asked.
#ifndef BYTEPS_CORE_BASE_FORK_GUARD_H_
#define BYTEPS_CORE_BASE_FORK_GUARD_H_

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <new>

namespace byteps {

class ForkGuard {
 public:
  ForkGuard() : owner_(::getpid()), page_size_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))) {
    void* page = ::mmap(nullptr, page_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    page_ = static_cast<volatile int*>(page);
    wiped_ = ::madvise(page, page_size_, MADV_WIPEONFORK) == 0;
    *page_ = 1;
  }
  ~ForkGuard() { ::munmap(const_cast<int*>(page_), page_size_); }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool in_child() const { return wiped_ ? *page_ == 0 : ::getpid() != owner_; }

 private:
  const pid_t owner_;
  const size_t page_size_;
  volatile int* page_;
  bool wiped_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_FORK_GUARD_H_
