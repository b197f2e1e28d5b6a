// Memory of the device and of the host: what an address is, copies, fills, errors.

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "abi/byteps.h"
#include "tests/device/device_test.h"

namespace byteps::testing {
namespace {

constexpr uint64_t kSize = 100003;

std::vector<uint8_t> Pattern(uint64_t size, uint8_t first) {
  std::vector<uint8_t> bytes(size);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

TEST_P(DeviceTest, CopiesGoThereAndBack) {
  auto* memory = static_cast<uint8_t*>(Allocate(kSize));
  const std::vector<uint8_t> bytes = Pattern(kSize, 3);
  Write(memory, bytes);
  EXPECT_EQ(Read(memory, kSize), bytes);
  // A part of it, at odd addresses.
  Write(memory + 17, std::vector<uint8_t>(5, 200));
  std::vector<uint8_t> expected = bytes;
  std::memset(expected.data() + 17, 200, 5);
  EXPECT_EQ(Read(memory, kSize), expected);
}

TEST_P(DeviceTest, CopiesWithinAndFills) {
  auto* from = static_cast<uint8_t*>(Allocate(kSize));
  auto* to = static_cast<uint8_t*>(Allocate(kSize));
  const std::vector<uint8_t> bytes = Pattern(kSize, 9);
  Write(from, bytes);
  bps_device_stream stream = Stream();
  EXPECT_DONE(copy_within, to, from, kSize, stream);
  EXPECT_DONE(fill, to + 100, 77, 50, stream);
  EXPECT_DONE(synchronize, stream);
  std::vector<uint8_t> expected = bytes;
  std::memset(expected.data() + 100, 77, 50);
  EXPECT_EQ(Read(to, kSize), expected);
}

TEST_P(DeviceTest, CopiesOfNothing) {
  void* memory = Allocate(16);
  uint8_t* host = AllocateHost(16);
  bps_device_stream stream = Stream();
  EXPECT_DONE(copy_to_host, host, memory, 0, stream);
  EXPECT_DONE(copy_to_device, memory, host, 0, stream);
  EXPECT_DONE(copy_within, memory, memory, 0, stream);
  EXPECT_DONE(fill, memory, 0, 0, stream);
  EXPECT_DONE(synchronize, stream);
}

TEST_P(DeviceTest, KnowsWhatAnAddressIs) {
  auto* memory = static_cast<uint8_t*>(Allocate(kSize));
  uint8_t* host = AllocateHost(kSize);
  std::vector<uint8_t> ordinary(16);
  const auto ask = [&](const void* address) {
    bps_device_pointer pointer = {};
    pointer.struct_size = sizeof pointer;
    EXPECT_DONE(pointer, address, &pointer);
    return pointer;
  };
  for (const uint64_t offset : {uint64_t{0}, uint64_t{5}, kSize - 1}) {
    const bps_device_pointer device = ask(memory + offset);
    EXPECT_EQ(device.type, BPS_CUDA);
    EXPECT_EQ(device.id, 0);
    EXPECT_EQ(device.base, memory);
    EXPECT_GE(device.size, kSize);
    const bps_device_pointer pinned = ask(host + offset);
    EXPECT_EQ(pinned.type, BPS_CUDA_HOST);
  }
  EXPECT_EQ(ask(ordinary.data()).type, BPS_CPU);
  EXPECT_EQ(ask(ordinary.data()).base, nullptr);
}

TEST_P(DeviceTest, PinsMemoryThatIsThere) {
  void* memory = Allocate(8192);
  void* area = std::aligned_alloc(4096, 8192);
  const std::vector<uint8_t> bytes = Pattern(8192, 1);
  std::memcpy(area, bytes.data(), bytes.size());
  EXPECT_DONE(register_host, area, 8192);
  bps_device_pointer pointer = {};
  pointer.struct_size = sizeof pointer;
  EXPECT_DONE(pointer, area, &pointer);
  EXPECT_EQ(pointer.type, BPS_CUDA_HOST);
  bps_device_stream stream = Stream();
  EXPECT_DONE(copy_to_device, memory, area, 8192, stream);
  EXPECT_DONE(synchronize, stream);
  EXPECT_DONE(unregister_host, area);
  EXPECT_EQ(Read(memory, 8192), bytes);
  EXPECT_DONE(pointer, area, &pointer);
  EXPECT_EQ(pointer.type, BPS_CPU);
  std::free(area);
}

TEST_P(DeviceTest, OutOfMemoryIsAnErrorAndNoMore) {
  void* base = nullptr;
  EXPECT_ERROR(BPS_RESOURCE_EXHAUSTED, allocate, uint64_t{1} << 52, &base);
  EXPECT_EQ(base, nullptr);
  void* memory = Allocate(64);
  Write(memory, std::vector<uint8_t>(64, 4));
  EXPECT_EQ(Read(memory, 64), std::vector<uint8_t>(64, 4));
}

TEST_P(DeviceTest, GivingBackWhatIsNotThereIsAnError) {
  uint8_t ordinary[16] = {};
  EXPECT_ERROR(BPS_INVALID_ARGUMENT, release, ordinary);
  EXPECT_ERROR(BPS_INVALID_ARGUMENT, release_host, ordinary);
  EXPECT_ERROR(BPS_INVALID_ARGUMENT, unregister_host, ordinary);
}

TEST_P(DeviceTest, ManyThreadsAtOnce) {
  constexpr int kThreads = 4, kRounds = 50;
  std::vector<uint8_t*> memory, from, to;
  std::vector<bps_device_stream> streams;
  std::vector<bps_device_event*> events;
  for (int thread = 0; thread < kThreads; ++thread) {
    memory.push_back(static_cast<uint8_t*>(Allocate(4096)));
    from.push_back(AllocateHost(4096));
    to.push_back(AllocateHost(4096));
    streams.push_back(Stream());
    events.push_back(Event());
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(kThreads);
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < kRounds; ++round) {
        std::memset(from[thread], round, 4096);
        bool ok = table_->copy_to_device(device_, memory[thread], from[thread], 4096, streams[thread], nullptr) == 0;
        ok = ok && table_->copy_to_host(device_, to[thread], memory[thread], 4096, streams[thread], nullptr) == 0;
        ok = ok && table_->event_record(device_, events[thread], streams[thread], nullptr) == 0;
        int32_t code = BPS_DEVICE_NOT_READY;
        while (ok && code == BPS_DEVICE_NOT_READY) code = table_->event_query(device_, events[thread], nullptr);
        if (!ok || code != BPS_OK || std::memcmp(from[thread], to[thread], 4096) != 0) ++wrong[thread];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kThreads));
}

}  // namespace
}  // namespace byteps::testing
