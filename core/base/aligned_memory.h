// aligned_memory.h - whole pages of our own, for memory that is registered with transports.
//
// Pages are mapped lazily by the kernel; nothing is written before its first use. Move-only owner.
#ifndef BYTEPS_CORE_BASE_ALIGNED_MEMORY_H_
#define BYTEPS_CORE_BASE_ALIGNED_MEMORY_H_

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace byteps {

class AlignedMemory {
 public:
  AlignedMemory() = default;
  // Throws std::bad_alloc.
  explicit AlignedMemory(size_t size) : size_(size) {
    if (size == 0) return;
    void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(base);
  }
  AlignedMemory(AlignedMemory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedMemory& operator=(AlignedMemory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~AlignedMemory() {
    if (base_ != nullptr) ::munmap(base_, size_);
  }

  bool empty() const { return base_ == nullptr; }
  std::byte* data() const { return base_; }
  size_t size() const { return size_; }

 private:
  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_ALIGNED_MEMORY_H_
