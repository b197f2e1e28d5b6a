// byte_buffer.h - bytes that grow, in memory that is used again, and are not set before they are written.
//
//     ByteBuffer bytes(memory);
//     bytes.Assign(payload);
//     std::memcpy(bytes.Extend(header.size()), header.data(), header.size());
//
// What std::pmr::vector<std::byte> does one byte at a time (through its allocator) is one memcpy here: payloads of
// small tensors pass through three such buffers.
//
// Threads: none. Ownership: the bytes are the buffer's, the memory resource must outlive it.
#ifndef BYTEPS_CORE_BASE_BYTE_BUFFER_H_
#define BYTEPS_CORE_BASE_BYTE_BUFFER_H_

#include <cstddef>
#include <memory_resource>
#include <span>

namespace byteps {

class ByteBuffer {
 public:
  // So that containers of a memory resource hand it on.
  using allocator_type = std::pmr::polymorphic_allocator<>;
  explicit ByteBuffer(allocator_type memory = {}) : memory_(memory.resource()) {}
  ByteBuffer(ByteBuffer&& other) noexcept;
  ByteBuffer& operator=(ByteBuffer&&) = delete;
  ~ByteBuffer();

  const std::byte* data() const { return data_; }
  std::byte* data() { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // So many bytes behind those that are there. They are not set; until the next call that may move them.
  std::byte* Extend(size_t more);
  // These bytes instead of those that were there. They must not be the buffer's own.
  void Assign(std::span<const std::byte> bytes);
  // Room for so many in all.
  void Reserve(size_t capacity);

 private:
  std::pmr::memory_resource* memory_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_BYTE_BUFFER_H_
