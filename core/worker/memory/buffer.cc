#include "core/worker/memory/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/background_unmap.h"

namespace byteps {
namespace {

uintptr_t Number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// A file of memory whose size is settled, so that no process that maps it can take it away from another one.
UniqueFd MemoryFile(size_t size) {
  // Beyond this limit (ulimit -f) the kernel sends SIGXFSZ, which ends a process.
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size > limit.rlim_cur) {
    return UniqueFd();
  }
#ifdef MFD_NOEXEC_SEAL
  // Kernels since 6.3 may insist on the last, older ones do not know it.
  UniqueFd fd(::memfd_create("byteps-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd) fd = UniqueFd(::memfd_create("byteps-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
#else
  UniqueFd fd(::memfd_create("byteps-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
#endif
  // A descriptor is the lowest number that is free. The upper half is the program's, whose next file would be one too
  // many, and the transports'.
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd.get()) >= limit.rlim_cur / 2) return UniqueFd();
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return UniqueFd();
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Buffer>> Buffer::Map(size_t size, bool shared) {
  const bool huge = size >= kHugePage;
  const size_t page = huge ? kHugePage : static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto refuse = [&](const char* why) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a buffer of ", size, " bytes: ", why));
  };
  if (size > SIZE_MAX / 2) return refuse("more than an address space");
  // Whole pages, at least one; huge ones need room to begin at a multiple of their size.
  const size_t rounded = (size / page + (size % page != 0 || size == 0 ? 1 : 0)) * page;
  const size_t mapped = rounded + (huge ? kHugePage : 0);
  void* mapping = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return refuse(::strerrordesc_np(errno));
  auto* data = static_cast<std::byte*>(mapping);
  if (huge) data += (kHugePage - Number(data) % kHugePage) % kHugePage;
  UniqueFd fd;
  // Where many descriptors are in use, or files must be small, it is memory of this process alone.
  if (shared && size >= kLeastShared) fd = MemoryFile(rounded);
  if (fd && ::mmap(data, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(mapping, mapped);
    return refuse(::strerrordesc_np(error));
  }
  // Where the kernel has none, the pages are ordinary ones.
  if (huge) ::madvise(data, rounded, MADV_HUGEPAGE);
  return std::shared_ptr<Buffer>(new Buffer(mapping, mapped, data, size, std::move(fd)));
}

// The last owner may be the thread that moves tensors.
Buffer::~Buffer() {
  if (mapping_ != nullptr) UnmapInBackground(mapping_, mapped_, std::move(fd_));
}

std::shared_ptr<Buffer> Buffer::Of(void* data, size_t size) {
  return std::shared_ptr<Buffer>(new Buffer(nullptr, 0, static_cast<std::byte*>(data), size, UniqueFd()));
}

void BufferTable::Share(std::function<void()> on_free, std::function<void()> on_private) {
  std::lock_guard<std::mutex> lock(mutex_);
  shared_ = true;
  on_free_ = std::move(on_free);
  on_private_ = std::move(on_private);
}

void BufferTable::Unshare() {
  std::lock_guard<std::mutex> lock(mutex_);
  shared_ = false;
  on_free_ = nullptr;
  on_private_ = nullptr;
}

bool Buffer::exchanged() const {
  struct stat status {};
  return fd_ && ::fstat(fd_.get(), &status) == 0 && (status.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO)) == 0;
}

absl::StatusOr<std::shared_ptr<Buffer>> BufferTable::Allocate(size_t size, bool own) {
  bool shared = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    shared = shared_ && !own;
  }
  absl::StatusOr<std::shared_ptr<Buffer>> buffer = Buffer::Map(size, shared);
  if (!buffer.ok()) return buffer;
  Add(*buffer);
  if (shared && size >= Buffer::kLeastShared && (*buffer)->fd() < 0) {
    std::function<void()> tell;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tell = std::exchange(on_private_, nullptr);
    }
    // Without the mutex: a log callback of the program's may call Allocate.
    if (tell != nullptr) tell();
  }
  return buffer;
}

void BufferTable::Add(const std::shared_ptr<Buffer>& buffer) {
  if (buffer->size() == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  buffers_.emplace(Number(buffer->data()) + buffer->size(), buffer);
  count_.store(buffers_.size(), std::memory_order_release);
}

absl::Status BufferTable::Free(Buffer* buffer) {
  if (fork_guard_.in_child()) {
    return absl::FailedPreconditionError("this process was forked from the one whose buffer this is");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  // Uses begin under the mutex: none comes now.
  if (const int64_t uses = buffer->uses_.load(std::memory_order_acquire); uses != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("a buffer of ", buffer->size(), " bytes is the input or output of an operation that has not ended",
                     ": wait for it, or cancel it and wait, and then free the buffer"));
  }
  // Without a byte it never was in the table, and its address may be where another one ends.
  if (buffer->size() != 0) buffers_.erase(Number(buffer->data()) + buffer->size());
  count_.store(buffers_.size(), std::memory_order_release);
  buffer->freed_.store(true, std::memory_order_release);
  if (on_free_ != nullptr) on_free_();
  return absl::OkStatus();
}

BufferUse BufferTable::Use(const void* at, size_t size) {
  if (size == 0 || count_.load(std::memory_order_acquire) == 0) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  // The first one that ends behind `at`.
  const auto found = buffers_.upper_bound(Number(at));
  if (found == buffers_.end() || Number(found->second->data()) >= Number(at) + size) return {};
  found->second->uses_.fetch_add(1, std::memory_order_relaxed);
  return BufferUse(found->second);
}

}  // namespace byteps
