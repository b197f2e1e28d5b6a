// Memory: many regions, and none that is touched after it was taken back.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "abi/byteps.h"
#include "tests/transport/transport_test.h"

namespace byteps::testing {
namespace {

TEST_P(TransportTest, TenThousandRegions) {
  const Pair pair = Join();
  const size_t count = 10'000, size = 64;
  std::vector<std::byte>& memory = pair.b->NewMemory(count * size).bytes;
  Memory& source = pair.a->NewMemory(Bytes(count * size));
  std::vector<bps_region*> regions;
  std::vector<std::string> keys;
  for (size_t i = 0; i < count; ++i) {
    regions.push_back(pair.b->Register(memory.data() + i * size, size));
    keys.push_back(pair.b->Key(regions.back(), pair.to_a));
  }
  std::vector<size_t> chosen = {0, count - 1};
  for (int i = 0; i < 200; ++i) chosen.push_back(random()() % count);
  for (const size_t i : chosen) {
    ASSERT_EQ(Post([&] {
                return pair.a->Write(pair.to_b, source.region, source.at(i * size), size, keys[i], 0,
                                     static_cast<uint32_t>(i));
              }),
              BPS_OK);
  }
  ASSERT_TRUE(Until([&] { return pair.b->immediates().size() == chosen.size() && pair.a->outstanding() == 0; }));
  for (const size_t i : chosen) {
    EXPECT_EQ(std::memcmp(memory.data() + i * size, source.at(i * size), size), 0) << "region " << i;
  }
  for (bps_region* region : regions) pair.b->Unregister(region);
  ExpectWorks(pair);
}

TEST_P(TransportTest, RegistrationsComeAndGoWhileOthersAreUsed) {
  const Pair pair = Join();
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> target(3000), source = Bytes(3000);
    bps_region* to = pair.b->Register(target.data(), target.size());
    bps_region* from = pair.a->Register(source.data(), source.size());
    const std::string key = pair.b->Key(to, pair.to_a);
    const size_t before = pair.b->immediates().size();
    ASSERT_EQ(Post([&] { return pair.a->Write(pair.to_b, from, source.data(), source.size(), key, 0, 3); }), BPS_OK);
    ASSERT_TRUE(Until([&] { return pair.b->immediates().size() > before && pair.a->outstanding() == 0; }));
    EXPECT_TRUE(target == source);
    pair.a->Unregister(from);
    pair.b->Unregister(to);
  }
}

// Where a registration is of addresses, it may outlive its memory, and then means what is mapped there next.
TEST_P(TransportTest, ARegionOfAddressesHoldsNoPage) {
  const Pair pair = Join();
  if (!pair.b->has(BPS_TRANSPORT_REG_ADDRESSES)) GTEST_SKIP() << "not a region of addresses";
  const size_t size = size_t{256} << 10;
  const auto map = [&](void* at, int how) {
    void* base = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | how, -1, 0);
    EXPECT_NE(base, MAP_FAILED);
    return static_cast<std::byte*>(base);
  };
  std::byte* const to_base = map(nullptr, 0);
  std::byte* const from_base = map(nullptr, 0);
  bps_region* to = pair.b->Register(to_base, size);
  bps_region* from = pair.a->Register(from_base, size);
  const std::string key = pair.b->Key(to, pair.to_a);
  for (uint32_t round = 0; round < 5; ++round) {
    SCOPED_TRACE(round);
    const std::vector<std::byte> bytes = Bytes(size);
    std::copy(bytes.begin(), bytes.end(), from_base);
    ASSERT_EQ(Post([&] { return pair.a->Write(pair.to_b, from, from_base, size, key, 0, round); }), BPS_OK);
    ASSERT_TRUE(Until([&] { return pair.b->immediates().size() == round + 1 && pair.a->outstanding() == 0; }));
    EXPECT_EQ(std::memcmp(to_base, bytes.data(), size), 0);
    EXPECT_EQ(pair.b->Key(to, pair.to_a).size(), key.size());
    // Both are freed, and other memory is mapped where they were.
    for (std::byte* base : {to_base, from_base}) {
      munmap(base, size);
      ASSERT_EQ(map(base, MAP_FIXED_NOREPLACE), base);
      EXPECT_EQ(static_cast<size_t>(std::count(base, base + size, std::byte{0})), size);
    }
  }
  pair.a->Unregister(from);
  pair.b->Unregister(to);
  munmap(to_base, size);
  munmap(from_base, size);
}

// The source of writes is unregistered, and reused at once, while they are under way.
TEST_P(TransportTest, UnregisterEndsTheOperationsOfThisSideFirst) {
  Station& a = Open();
  Station& b = Open();
  const Pair pair = Join(a, b);
  // What a round has written may still arrive in the next one: each has slots of its own.
  const size_t slot = 64 * 1024, slots = 16, rounds = 20;
  Memory& target = b.NewMemory(slot * slots * rounds);
  const std::string key = b.Key(target.region, pair.to_a);
  std::vector<std::byte> original;
  size_t seen = 0;
  for (size_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    std::vector<std::byte> source = Bytes(slot * slots);
    original.insert(original.end(), source.begin(), source.end());
    bps_region* region = a.Register(source.data(), source.size());
    std::vector<uint64_t> users;
    for (size_t i = 0; i < slots; ++i) {
      const size_t place = round * slots + i;
      const int32_t code =
          a.Write(pair.to_b, region, source.data() + i * slot, slot, key, place * slot, static_cast<uint32_t>(place));
      if (code == BPS_OK) users.push_back(a.last_user());
    }
    for (uint64_t i = random()() % 4; i > 0; --i) {
      b.Poll();
      a.Poll(4);
      world().Pass();
    }
    a.Unregister(region);
    std::fill(source.begin(), source.end(), std::byte{0xbb});  // the memory is ours again
    ASSERT_TRUE(Until([&] { return a.outstanding() == 0; }));
    for (const uint64_t user : users) {
      int32_t code = -1;
      ASSERT_TRUE(a.Ended(user, &code));
      EXPECT_TRUE(code == BPS_OK || code == BPS_CANCELLED || a.down(pair.to_b)) << code;
    }
    if (a.down(pair.to_b)) return;  // a stream that was cut in the middle of a write cannot go on
    Settle(5'000'000);
    // What arrived is what was there before unreg.
    for (; seen < b.immediates().size(); ++seen) {
      const size_t place = b.immediates()[seen];
      EXPECT_EQ(std::memcmp(target.at(place * slot), original.data() + place * slot, slot), 0) << "slot " << place;
    }
  }
}

// The target of writes is unregistered while they are under way: nothing lands from then on.
TEST_P(TransportTest, NothingLandsAfterUnregister) {
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    Station& a = Open();
    Station& b = Open();
    Station& c = Open();
    const Pair pair = Join(a, b);
    const Pair other = Join(c, b);
    const size_t slot = 64 * 1024, slots = 16;
    std::vector<std::byte> target(slot * slots);
    bps_region* region = b.Register(target.data(), target.size());
    Memory& source = a.NewMemory(Bytes(slot * slots));
    const std::string key = b.Key(region, pair.to_a);
    for (uint32_t i = 0; i < slots; ++i) {
      a.Write(pair.to_b, source.region, source.at(i * slot), slot, key, i * slot, i);
    }
    for (uint64_t i = random()() % 6; i > 0; --i) {
      a.Poll();
      b.Poll(4);
      world().Pass();
    }
    b.Unregister(region);
    std::fill(target.begin(), target.end(), std::byte{0xbb});
    ASSERT_TRUE(Until([&] { return a.outstanding() == 0 || a.down(pair.to_b); }));
    Settle(10'000'000);
    EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{0xbb}), static_cast<ptrdiff_t>(target.size()));
    ExpectWorks(other);
  }
}

TEST_P(TransportTest, AllocatedMemoryIsRegisteredMemory) {
  Station& a = Open();
  Station& b = Open();
  if (b.table().struct_size <= offsetof(bps_transport_table, allocate) || b.table().allocate == nullptr) {
    GTEST_SKIP() << "allocate is not provided";
  }
  const Pair pair = Join(a, b);
  bps_region* region = nullptr;
  void* base = nullptr;
  ASSERT_EQ(b.table().allocate(b.transport(), 10'000, &region, &base, nullptr), BPS_OK);
  std::memset(base, 0xee, 10'000);
  Memory& source = a.NewMemory(Bytes(10'000));
  const std::string key = b.Key(region, pair.to_a);
  ASSERT_EQ(Post([&] { return a.Write(pair.to_b, source.region, source.at(0), 10'000, key, 0, 1); }), BPS_OK);
  ASSERT_TRUE(Until([&] { return b.immediates().size() == 1 && a.outstanding() == 0; }));
  EXPECT_EQ(std::memcmp(base, source.at(0), 10'000), 0);
  b.Unregister(region);
}

TEST_P(TransportTest, RemoteMemoryCanBeMappedAndCopiedWhereAnnounced) {
  const Pair pair = Join();
  Station& a = *pair.a;
  if (!a.has(BPS_TRANSPORT_MAP_REMOTE) && !a.has(BPS_TRANSPORT_COPY)) GTEST_SKIP() << "neither is announced";
  bps_region* region = nullptr;
  void* base = nullptr;
  ASSERT_EQ(pair.b->table().allocate(pair.b->transport(), 8192, &region, &base, nullptr), BPS_OK);
  const std::vector<std::byte> content = Bytes(8192);
  std::memcpy(base, content.data(), content.size());
  const std::string key = pair.b->Key(region, pair.to_a);
  const bps_remote remote{key.data(), key.size(), 4096};
  if (a.has(BPS_TRANSPORT_MAP_REMOTE)) {
    void* mapped = nullptr;
    ASSERT_EQ(a.table().map_remote(a.transport(), pair.to_b, &remote, 4096, &mapped), BPS_OK);
    EXPECT_EQ(std::memcmp(mapped, content.data() + 4096, 4096), 0);
    std::memset(mapped, 0x11, 10);
    EXPECT_EQ(static_cast<unsigned char*>(base)[4096], 0x11);
  }
  if (a.has(BPS_TRANSPORT_COPY)) {
    std::vector<std::byte> copy(1000);
    ASSERT_EQ(a.table().copy_from(a.transport(), pair.to_b, &remote, copy.data(), copy.size()), BPS_OK);
    EXPECT_EQ(std::memcmp(copy.data(), static_cast<std::byte*>(base) + 4096, copy.size()), 0);
    std::fill(copy.begin(), copy.end(), std::byte{0x22});
    ASSERT_EQ(a.table().copy_to(a.transport(), pair.to_b, &remote, copy.data(), copy.size()), BPS_OK);
    EXPECT_EQ(static_cast<unsigned char*>(base)[4096 + 999], 0x22);
    EXPECT_EQ(static_cast<std::byte*>(base)[4096 + 1000], content[4096 + 1000]);
  }
  pair.b->Unregister(region);
}

// Copies are made on the caller's thread, whichever it is, while another one drives the transport.
TEST_P(TransportTest, CopiesAreMadeOnAnyThread) {
  const Pair pair = Join();
  Station& a = *pair.a;
  Station& b = *pair.b;
  if (!a.has(BPS_TRANSPORT_COPY)) GTEST_SKIP() << "copies are not announced";
  if (!world().RealTime()) GTEST_SKIP() << "a simulated world is one thread's";
  constexpr size_t kHalf = 300'000;
  bps_region* region = nullptr;
  void* base = nullptr;
  ASSERT_EQ(b.table().allocate(b.transport(), 2 * kHalf, &region, &base, nullptr), BPS_OK);
  const std::vector<std::byte> content = Bytes(kHalf);
  std::memcpy(base, content.data(), kHalf);
  const std::string key = b.Key(region, pair.to_a);
  // What the key stands for may come behind it, and is let in by the thread that drives the transport.
  const bps_remote first{key.data(), key.size(), 0};
  std::byte byte{};
  ASSERT_TRUE(Until([&] { return a.table().copy_from(a.transport(), pair.to_b, &first, &byte, 1) == BPS_OK; }));
  std::atomic<uint32_t> copies = 0;
  std::atomic<bool> stop = false;
  std::string wrong;  // the thread's, until it has ended
  std::thread copier([&] {
    std::vector<std::byte> copy(kHalf);
    const bps_remote from{key.data(), key.size(), 0};
    const bps_remote to{key.data(), key.size(), kHalf};
    for (; !stop && wrong.empty(); ++copies) {
      std::fill(copy.begin(), copy.end(), std::byte{0});
      const int32_t read = a.table().copy_from(a.transport(), pair.to_b, &from, copy.data(), copy.size());
      if (read != BPS_OK) wrong = "copy_from: " + std::to_string(read);
      if (copy != content) wrong = "copy_from has brought other bytes";
      const int32_t written = a.table().copy_to(a.transport(), pair.to_b, &to, copy.data(), copy.size());
      if (written != BPS_OK) wrong = "copy_to: " + std::to_string(written);
    }
    stop = true;
  });
  uint32_t messages = 0;
  EXPECT_TRUE(Until(
      [&] {
        const size_t before = b.messages(pair.to_a).size();
        if (a.Send(pair.to_b, "beside copies") == BPS_OK) {
          ++messages;
          EXPECT_TRUE(Until([&] { return b.messages(pair.to_a).size() > before; }));
        }
        return (messages >= 200 && copies >= 50) || stop || HasFailure();
      },
      60));
  stop = true;
  copier.join();
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(std::memcmp(static_cast<std::byte*>(base) + kHalf, content.data(), kHalf), 0);
  b.Unregister(region);
}

// When unreg has returned no peer writes into the memory any more, however many copies were on their way.
TEST_P(TransportTest, CopiesEndWhereMemoryIsTakenBack) {
  const Pair pair = Join();
  Station& a = *pair.a;
  Station& b = *pair.b;
  if (!a.has(BPS_TRANSPORT_COPY)) GTEST_SKIP() << "copies are not announced";
  if (!world().RealTime()) GTEST_SKIP() << "a simulated world is one thread's";
  constexpr size_t kSize = 1 << 20;
  std::vector<std::byte> memory(kSize, std::byte{0});
  for (int round = 0; round < 20; ++round) {
    bps_region* region = nullptr;
    ASSERT_EQ(b.table().reg(b.transport(), memory.data(), kSize, &region, nullptr), BPS_OK);
    const std::string key = b.Key(region, pair.to_a);
    std::atomic<uint32_t> copies = 0;
    std::atomic<int32_t> code = BPS_OK;
    std::thread copier([&] {
      const std::vector<std::byte> ones(kSize, std::byte{1});
      const bps_remote to{key.data(), key.size(), 0};
      while (code == BPS_OK) {
        code = a.table().copy_to(a.transport(), pair.to_b, &to, ones.data(), ones.size());
        ++copies;
      }
    });
    EXPECT_TRUE(Until([&] { return copies >= 3 || code != BPS_OK; }, 60));
    const bool possible = code != BPS_UNIMPLEMENTED;
    EXPECT_TRUE(!possible || code == BPS_OK) << code;
    b.Unregister(region);
    std::fill(memory.begin(), memory.end(), std::byte{2});
    EXPECT_TRUE(Until([&] { return code != BPS_OK; }, 60)) << "copies go on into memory that was taken back";
    copier.join();
    if (!possible) GTEST_SKIP() << "ordinary memory is not copied here";
    EXPECT_EQ(code, BPS_NOT_FOUND);
    ASSERT_EQ(std::count(memory.begin(), memory.end(), std::byte{2}), static_cast<ptrdiff_t>(kSize))
        << "written behind unreg";
  }
}

// Memory of the test's own, of a kind that peers can map.
class MemoryFile {
 public:
  explicit MemoryFile(size_t size) : fd_(memfd_create("byteps-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)), size_(size) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(size)), 0);
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    base_ = static_cast<std::byte*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
  }
  ~MemoryFile() {
    munmap(base_, size_);
    close(fd_);
  }
  std::byte* base() const { return base_; }
  int fd() const { return fd_; }

 private:
  const int fd_;
  const size_t size_;
  std::byte* base_ = nullptr;
};

TEST_P(TransportTest, MemoryFilesAreMappedByPeersAndStayTheirOwners) {
  const Pair pair = Join();
  Station& a = *pair.a;
  Station& b = *pair.b;
  constexpr size_t kEnd = offsetof(bps_transport_table, end_write) + sizeof(void*);
  if (b.table().struct_size < kEnd || b.table().reg_shared == nullptr || b.table().begin_write == nullptr) {
    GTEST_SKIP() << "reg_shared is not provided";
  }
  const size_t size = 1 << 20, offset = 4096, length = 8192;
  MemoryFile file(size);
  ASSERT_NE(file.base(), MAP_FAILED);
  bps_region* region = nullptr;
  ASSERT_EQ(b.table().reg_shared(b.transport(), file.base(), size, file.fd(), &region, nullptr), BPS_OK);
  const std::string key = b.Key(region, pair.to_a);
  const bps_remote remote{key.data(), key.size(), offset};
  const std::vector<std::byte> content = Bytes(length);
  std::memcpy(file.base() + offset, content.data(), length);
  // It is registered memory, for writes of peers and of its own.
  Memory& source = a.NewMemory(Bytes(1000));
  ASSERT_EQ(Post([&] { return a.Write(pair.to_b, source.region, source.at(0), 1000, key, 0, 1); }), BPS_OK);
  Memory& target = a.NewMemory(length);
  const std::string there = a.Key(target.region, pair.to_b);
  ASSERT_EQ(Post([&] { return b.Write(pair.to_a, region, file.base() + offset, length, there, 0, 2); }), BPS_OK);
  ASSERT_TRUE(Until([&] { return b.immediates().size() == 1 && a.immediates().size() == 1; }));
  EXPECT_EQ(std::memcmp(file.base(), source.at(0), 1000), 0);
  EXPECT_EQ(std::memcmp(target.at(0), content.data(), length), 0);
  // It is read and written where it is.
  void* mapped = nullptr;
  int32_t code = BPS_TRANSPORT_AGAIN;
  ASSERT_TRUE(Until([&] {
    code = a.table().map_remote(a.transport(), pair.to_b, &remote, length, &mapped);
    return code != BPS_TRANSPORT_AGAIN;
  }));
  ASSERT_EQ(code, BPS_OK);
  EXPECT_EQ(std::memcmp(mapped, content.data(), length), 0);
  void* written = nullptr;
  ASSERT_EQ(a.table().begin_write(a.transport(), pair.to_b, &remote, length, &written), BPS_OK);
  std::memset(written, 0x44, length);
  a.table().end_write(a.transport(), pair.to_b, &remote);
  EXPECT_EQ(static_cast<std::byte*>(mapped)[length - 1], std::byte{0x44});
  EXPECT_EQ(file.base()[offset + length - 1], std::byte{0x44});
  EXPECT_EQ(file.base()[offset + length], std::byte{0});
  const bps_remote beyond{key.data(), key.size(), size - length + 1};
  EXPECT_NE(a.table().begin_write(a.transport(), pair.to_b, &beyond, length, &written), BPS_OK);
  EXPECT_NE(a.table().map_remote(a.transport(), pair.to_b, &beyond, length, &written), BPS_OK);
  // Taken back, it is its owner's as before, and of no peer.
  b.Unregister(region);
  EXPECT_EQ(a.table().begin_write(a.transport(), pair.to_b, &remote, length, &written), BPS_NOT_FOUND);
  const std::vector<std::byte> copy(100);
  EXPECT_EQ(a.table().copy_to(a.transport(), pair.to_b, &remote, copy.data(), copy.size()), BPS_NOT_FOUND);
  std::fill_n(file.base(), size, std::byte{0x55});
  Deliver(b, pair.to_a, a, pair.to_b, "it is gone");
  Settle(5'000'000);
  EXPECT_EQ(a.table().map_remote(a.transport(), pair.to_b, &remote, length, &written), BPS_NOT_FOUND);
  // A peer that still has a pointer can look at it until it says that it does not.
  EXPECT_EQ(static_cast<std::byte*>(mapped)[0], std::byte{0x55});
  a.table().unmap_remote(a.transport(), pair.to_b, &remote);
  EXPECT_EQ(static_cast<size_t>(std::count(file.base(), file.base() + size, std::byte{0x55})), size);
  ExpectWorks(pair);
}

TEST_P(TransportTest, AMemoryFileThatCouldShrinkIsRefused) {
  Station& a = Open();
  constexpr size_t kEnd = offsetof(bps_transport_table, reg_shared) + sizeof(void*);
  if (a.table().struct_size < kEnd || a.table().reg_shared == nullptr) GTEST_SKIP() << "reg_shared is not provided";
  const int fd = memfd_create("byteps-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  void* base = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  bps_region* region = nullptr;
  EXPECT_EQ(a.table().reg_shared(a.transport(), base, 8192, fd, &region, nullptr), BPS_INVALID_ARGUMENT);
  munmap(base, 8192);
  close(fd);
}

}  // namespace
}  // namespace byteps::testing
