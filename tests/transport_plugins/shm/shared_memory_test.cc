#include "transport_plugins/shm/shared_memory.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace byteps::shm {
namespace {

constexpr size_t kSize = size_t{64} << 10;

TEST(SharedMemoryTest, WhatIsDetachedKeepsItsBytesAndIsReachedByNobody) {
  std::string reason;
  std::optional<SharedMemory> file = SharedMemory::Create("byteps-test", kSize, &reason);
  ASSERT_TRUE(file) << reason;
  void* mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* base = static_cast<std::byte*>(mapped);
  std::optional<SharedMemory> lent = SharedMemory::Borrow(file->fd(), base, kSize, &reason);
  ASSERT_TRUE(lent) << reason;
  std::memset(base, 1, kSize);

  EXPECT_FALSE(file->Detach()) << "it is our own, and not borrowed";
  EXPECT_FALSE(SharedMemory::IsDetached(file->fd()));
  ASSERT_TRUE(lent->Detach());
  EXPECT_TRUE(SharedMemory::IsDetached(file->fd()));
  std::memset(file->base(), 2, kSize);  // as another process does
  for (size_t i = 0; i < kSize; ++i) ASSERT_EQ(base[i], std::byte{1}) << i;
  munmap(base, kSize);
}

// Two transports may have been lent one buffer.
TEST(SharedMemoryTest, DetachedAgainItKeepsWhatWasWrittenSince) {
  std::string reason;
  std::optional<SharedMemory> file = SharedMemory::Create("byteps-test", kSize, &reason);
  ASSERT_TRUE(file) << reason;
  void* mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* base = static_cast<std::byte*>(mapped);
  std::optional<SharedMemory> one = SharedMemory::Borrow(file->fd(), base, kSize, &reason);
  std::optional<SharedMemory> other = SharedMemory::Borrow(file->fd(), base, kSize, &reason);
  ASSERT_TRUE(one && other) << reason;
  ASSERT_TRUE(one->Detach());
  std::memset(base, 3, kSize);
  ASSERT_TRUE(other->Detach());
  for (size_t i = 0; i < kSize; ++i) ASSERT_EQ(base[i], std::byte{3}) << i;
  munmap(base, kSize);
}

// What cannot be detached is what it was.
TEST(SharedMemoryTest, AFailureLeavesNoMark) {
  std::string reason;
  std::optional<SharedMemory> file = SharedMemory::Create("byteps-test", kSize, &reason);
  ASSERT_TRUE(file) << reason;
  std::byte* const nowhere = file->base() + 1;  // no mapping begins there
  std::optional<SharedMemory> lent = SharedMemory::Borrow(file->fd(), nowhere, kSize, &reason);
  ASSERT_TRUE(lent) << reason;
  EXPECT_FALSE(lent->Detach());
  EXPECT_FALSE(SharedMemory::IsDetached(file->fd()));
}

}  // namespace
}  // namespace byteps::shm
