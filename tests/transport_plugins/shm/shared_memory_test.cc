#include "transport_plugins/shm/shared_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "transport_plugins/shm/address.h"

namespace byteps::shm {
namespace {

constexpr size_t kSize = size_t{64} << 10;

TEST(SharedMemoryTest, WhatIsDetachedKeepsItsBytesAndIsReachedByNoPeer) {
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

// The kernel would end the process by SIGXFSZ.
TEST(SharedMemoryTest, ALimitOnFilesIsAnErrorThatNamesIt) {
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small { kSize - 1, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string reason;
  const bool made = SharedMemory::Create("byteps-test", kSize, &reason).has_value();
  const bool fits = SharedMemory::Create("byteps-test", kSize / 2, &reason).has_value();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(made);
  EXPECT_TRUE(fits);
  EXPECT_NE(reason.find("ulimit -f"), std::string::npos) << reason;
}

TEST(SharedMemoryTest, APeerThatDoesNotKnowWhereItIsSaysSo) {
  const Address here = Address::OfThisProcess();
  std::string reason;
  EXPECT_TRUE(here.CheckPlace(&reason)) << reason;
  for (const char* hidden : {"boot_id", "ns/net", "ns/ipc"}) {
    Address address = here;
    if (std::string(hidden) == "boot_id") address.boot_id[0] = '\0';
    if (std::string(hidden) == "ns/net") address.network_namespace = 0;
    if (std::string(hidden) == "ns/ipc") address.ipc_namespace = 0;
    EXPECT_FALSE(address.CheckPlace(&reason));
    EXPECT_NE(reason.find(hidden), std::string::npos) << reason;
  }
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
