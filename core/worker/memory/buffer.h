// buffer.h - memory for tensors that the library gives out: huge pages where the kernel has them, of a kind that other
// processes of the host can map, and an eye on who uses it.
//
//     absl::StatusOr<std::shared_ptr<Buffer>> buffer = table.Allocate(bytes);
//     BufferUse use = table.Use(input, input_bytes);     // an operation on any memory; of ours or not
//     absl::Status status = table.Free(buffer->get());   // FAILED_PRECONDITION while a use of it lives
//
// Buffers outlive the session: the table is shared with the holders of buffers. Ordinary memory costs a look at an
// empty table.
//
// Shared. Once a transport has said that it makes a difference (Share), a large buffer is a memory file. A registration
//         of it (core/worker/memory/buffer_regions.h) keeps it mapped until its free has been reported. Small ones
//         travel within messages, whatever they are.
//
// Threads: any. Pages are zero and come at their first touch.
// Errors:  RESOURCE_EXHAUSTED.
#ifndef BYTEPS_CORE_WORKER_MEMORY_BUFFER_H_
#define BYTEPS_CORE_WORKER_MEMORY_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/fork_guard.h"
#include "core/base/unique_fd.h"

namespace byteps {

class Buffer {
 public:
  // From here on buffers begin at a multiple of it, and may lie on huge pages.
  static constexpr size_t kHugePage = size_t{2} << 20;

  // What is smaller is not shared.
  static constexpr size_t kLeastShared = size_t{64} << 10;

  static absl::StatusOr<std::shared_ptr<Buffer>> Map(size_t size, bool shared = false);
  // Memory of another kind, that of a GPU, which its maker gives back.
  static std::shared_ptr<Buffer> Of(void* data, size_t size);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Has a transport taken it from a peer that could not be stopped? Then its pages are others than before, and who has
  // pinned them holds the old ones. Asks the system.
  bool exchanged() const;
  // The memory file that this is a mapping of, from its first byte on; -1: none, it is this process's alone.
  int fd() const { return fd_.get(); }
  bool Contains(const void* at, size_t size) const {
    const auto offset = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(data_);
    return offset <= size_ && size <= size_ - offset;
  }
  // Has its owner freed it? Then only those that have registered it still hold it.
  bool freed() const { return freed_.load(std::memory_order_acquire); }

 private:
  friend class BufferTable;
  friend class BufferUse;
  Buffer(void* mapping, size_t mapped, std::byte* data, size_t size, UniqueFd fd)
      : mapping_(mapping), mapped_(mapped), data_(data), size_(size), fd_(std::move(fd)) {}

  void* const mapping_;
  const size_t mapped_;
  std::byte* const data_;
  const size_t size_;
  UniqueFd fd_;
  std::atomic<int64_t> uses_{0};
  std::atomic<bool> freed_{false};
};

// One operation's use of a buffer; empty for other memory. Move-only.
class BufferUse {
 public:
  BufferUse() = default;
  BufferUse(BufferUse&& other) noexcept = default;
  BufferUse& operator=(BufferUse&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferUse() {
    if (buffer_ != nullptr) buffer_->uses_.fetch_sub(1, std::memory_order_release);
  }
  explicit operator bool() const { return buffer_ != nullptr; }
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }

 private:
  friend class BufferTable;
  explicit BufferUse(std::shared_ptr<Buffer> buffer) : buffer_(std::move(buffer)) {}
  std::shared_ptr<Buffer> buffer_;
};

class BufferTable {
 public:
  // From now on large buffers can be mapped by other processes. `on_free` is called after each Free, on its thread,
  // until Unshare, when it is not running any more. `on_private`, by Allocate and on its thread: the first that should
  // be mapped by others and cannot, since the process may have no more memory files, or none so large.
  void Share(std::function<void()> on_free, std::function<void()> on_private = nullptr);
  void Unshare();

  // `own`: of this process alone, whatever transports could do with it.
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t size, bool own = false);
  // From now on operations on it are counted, as on those of Allocate.
  void Add(const std::shared_ptr<Buffer>& buffer);
  // Ends the table's hold on the buffer, unless an operation uses it or this is a forked child. Its memory goes with
  // the last owner.
  absl::Status Free(Buffer* buffer);
  // Of the buffer that bytes [at, at + size) touch.
  BufferUse Use(const void* at, size_t size);

 private:
  const ForkGuard fork_guard_;
  std::atomic<size_t> count_{0};
  std::mutex mutex_;
  bool shared_ = false;
  std::function<void()> on_free_;
  std::function<void()> on_private_;                      // empty: it has been called, or there is none
  std::map<uintptr_t, std::shared_ptr<Buffer>> buffers_;  // by the address behind the last byte
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_MEMORY_BUFFER_H_
