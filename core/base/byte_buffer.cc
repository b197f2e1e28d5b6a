#include "core/base/byte_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace byteps {

ByteBuffer::ByteBuffer(ByteBuffer&& other) noexcept
    : memory_(other.memory_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

ByteBuffer::~ByteBuffer() {
  if (data_ != nullptr) memory_->deallocate(data_, capacity_, alignof(std::max_align_t));
}

std::byte* ByteBuffer::Extend(size_t more) {
  if (more > capacity_ - size_) Reserve(std::max(size_ + more, 2 * capacity_));
  std::byte* const at = data_ + size_;
  size_ += more;
  return at;
}

void ByteBuffer::Assign(std::span<const std::byte> bytes) {
  size_ = 0;
  if (!bytes.empty()) std::memcpy(Extend(bytes.size()), bytes.data(), bytes.size());
}

void ByteBuffer::Reserve(size_t capacity) {
  if (capacity <= capacity_) return;
  auto* const moved = static_cast<std::byte*>(memory_->allocate(capacity, alignof(std::max_align_t)));
  if (size_ != 0) std::memcpy(moved, data_, size_);
  if (data_ != nullptr) memory_->deallocate(data_, capacity_, alignof(std::max_align_t));
  data_ = moved;
  capacity_ = capacity;
}

}  // namespace byteps
