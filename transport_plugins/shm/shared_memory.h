// shared_memory.h - anonymous memory that other processes can map once they are given its descriptor (memfd).
//
//     std::optional<SharedMemory> memory = SharedMemory::Create("byteps-ring", size, &reason);
//     send memory->fd() ...                                         // SCM_RIGHTS
//     std::optional<SharedMemory> theirs = SharedMemory::Adopt(std::move(fd), size, &reason);
//
// Its size is sealed: no holder of the descriptor can shorten it and make an access of ours fail with SIGBUS. Needs
// no file system: a small /dev/shm does not matter. Pages come with their first use.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_SHARED_MEMORY_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_SHARED_MEMORY_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "transport_plugins/shm/unique_fd.h"

namespace byteps::shm {

class SharedMemory {
 public:
  // New memory of `size` bytes, zero.
  static std::optional<SharedMemory> Create(const char* name, size_t size, std::string* reason);
  // Maps `size` bytes of what another process has created; keeps no descriptor. Fails if it is smaller, or not sealed.
  static std::optional<SharedMemory> Adopt(UniqueFd fd, size_t size, std::string* reason);

  // A mapping of `fd` by other code; neither becomes ours. Fails if the file is smaller, or not sealed.
  static std::optional<SharedMemory> Borrow(int fd, std::byte* base, size_t size, std::string* reason);

  // Takes the bytes of borrowed memory out of its file: what is there stays there, what other threads of this process
  // write meanwhile, too, and from then on no other process reaches it. The file says so (IsDetached), and detaching it
  // again, by another borrower of the same mapping, does nothing. False: the system does not allow it; nothing has
  // changed. Any thread.
  bool Detach();
  // Was the mapping of this file detached? Then it is ordinary memory.
  static bool IsDetached(int fd);

  SharedMemory(SharedMemory&& other) noexcept
      : fd_(std::move(other.fd_)),
        lent_fd_(other.lent_fd_),
        base_(std::exchange(other.base_, nullptr)),
        size_(other.size_) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(lent_fd_, other.lent_fd_);
    std::swap(base_, other.base_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~SharedMemory();

  std::byte* base() const { return base_; }
  size_t size() const { return size_; }
  int fd() const { return lent() ? lent_fd_ : fd_.get(); }
  // Borrowed?
  bool lent() const { return lent_fd_ >= 0; }

 private:
  SharedMemory(UniqueFd fd, std::byte* base, size_t size) : fd_(std::move(fd)), base_(base), size_(size) {}

  UniqueFd fd_;
  int lent_fd_ = -1;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_SHARED_MEMORY_H_
