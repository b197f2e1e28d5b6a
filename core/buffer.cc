#include "core/buffer.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

uintptr_t Number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

absl::StatusOr<std::shared_ptr<Buffer>> Buffer::Map(size_t size) {
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
  if (huge) {
    data += (kHugePage - Number(data) % kHugePage) % kHugePage;
    // Where the kernel has none, the pages are ordinary ones.
    ::madvise(data, rounded, MADV_HUGEPAGE);
  }
  return std::shared_ptr<Buffer>(new Buffer(mapping, mapped, data, size));
}

Buffer::~Buffer() { ::munmap(mapping_, mapped_); }

absl::StatusOr<std::shared_ptr<Buffer>> BufferTable::Allocate(size_t size) {
  absl::StatusOr<std::shared_ptr<Buffer>> buffer = Buffer::Map(size);
  if (!buffer.ok() || size == 0) return buffer;
  std::lock_guard<std::mutex> lock(mutex_);
  buffers_.emplace(Number((*buffer)->data()) + size, *buffer);
  count_.store(buffers_.size(), std::memory_order_release);
  return buffer;
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
