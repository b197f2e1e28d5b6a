#include "core/base/byte_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory_resource>
#include <string>
#include <string_view>
#include <utility>

namespace byteps {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string Text(const ByteBuffer& buffer) { return {reinterpret_cast<const char*>(buffer.data()), buffer.size()}; }

// Counts what is out, and refuses to take back what it has not given.
class Counted : public std::pmr::memory_resource {
 public:
  size_t out = 0;
  size_t allocations = 0;

 private:
  void* do_allocate(size_t bytes, size_t alignment) override {
    out += bytes;
    ++allocations;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* at, size_t bytes, size_t alignment) override {
    out -= bytes;
    std::pmr::new_delete_resource()->deallocate(at, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TEST(ByteBufferTest, GrowsAndKeepsWhatIsThere) {
  ByteBuffer buffer;
  EXPECT_TRUE(buffer.empty());
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string more = std::to_string(i);
    std::memcpy(buffer.Extend(more.size()), more.data(), more.size());
    expected += more;
  }
  EXPECT_EQ(Text(buffer), expected);
}

TEST(ByteBufferTest, AssignReplacesLongerAndShorter) {
  ByteBuffer buffer;
  buffer.Assign(Bytes("a long one"));
  buffer.Assign(Bytes("short"));
  EXPECT_EQ(Text(buffer), "short");
  buffer.Assign({});
  EXPECT_TRUE(buffer.empty());
  buffer.Assign(Bytes("another one, longer than all before"));
  EXPECT_EQ(Text(buffer), "another one, longer than all before");
}

TEST(ByteBufferTest, ReservedMemoryIsNotMoved) {
  Counted memory;
  ByteBuffer buffer(&memory);
  buffer.Reserve(100);
  const std::byte* const at = buffer.Extend(1);
  for (int i = 1; i < 100; ++i) buffer.Extend(1);
  EXPECT_EQ(buffer.data(), at);
  EXPECT_EQ(memory.allocations, 1u);
  buffer.Reserve(50);
  EXPECT_EQ(buffer.size(), 100u);
  EXPECT_EQ(memory.allocations, 1u);
}

TEST(ByteBufferTest, GivesAllItsMemoryBack) {
  Counted memory;
  {
    ByteBuffer buffer(&memory);
    for (int i = 0; i < 1000; ++i) buffer.Extend(17);
    ByteBuffer moved(std::move(buffer));
    EXPECT_EQ(moved.size(), 17000u);
    moved.Extend(20000);
    EXPECT_GE(memory.out, 37000u);
  }
  EXPECT_EQ(memory.out, 0u);
}

}  // namespace
}  // namespace byteps
