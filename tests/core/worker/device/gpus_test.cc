// What callers say of memory of GPUs is checked before anything is done with it.
#include "core/worker/device/gpus.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "abi/byteps.h"
#include "abi/device.h"
#include "device_plugins/fake/control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/worker/device/fake_gpus.h"

namespace byteps {
namespace {

using ::testing::HasSubstr;

TEST(GpusTest, NoMemoryReachesBeyondItsAllocation) {
  const std::shared_ptr<Gpus> gpus = FakeGpus("devices=1");
  const std::shared_ptr<Gpu> gpu = gpus->Get(0)->gpu;
  auto* const base = static_cast<std::byte*>(*gpu->Allocate(1000));
  const auto check = [&](uint64_t offset, uint64_t bytes) {
    const GpuMemory input = {"input", nullptr, 0, Device(), nullptr};
    return gpus->Prepare(input, {"output", base + offset, bytes, {BPS_CUDA, 0}, nullptr}, false).status();
  };
  EXPECT_TRUE(check(0, 1000).ok()) << check(0, 1000);
  EXPECT_TRUE(check(400, 600).ok()) << check(400, 600);
  for (const auto& [offset, bytes, beyond] : {std::tuple<uint64_t, uint64_t, uint64_t>{0, 1001, 1},
                                              {400, 700, 100},
                                              {0, UINT64_MAX, UINT64_MAX - 1000},
                                              {400, UINT64_MAX, UINT64_MAX - 600}}) {
    const absl::Status status = check(offset, bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("reaches " + std::to_string(beyond) + " bytes beyond the end of its allocation"));
  }
  EXPECT_TRUE(gpu->Release(base).ok());
}

// A stream that is another one on the library's thread cannot wait there for a result.
TEST(GpusTest, TheStreamOfAThreadIsWaitedOnThere) {
  const std::shared_ptr<Gpus> gpus = FakeGpus("devices=1");
  const std::shared_ptr<Gpu> gpu = gpus->Get(0)->gpu;
  void* const memory = *gpu->Allocate(1000);
  void* const pinned = *gpu->AllocateHost(1000);
  const auto stream = reinterpret_cast<bps_device_stream>(2);
  const auto prepare = [&](void* output, int32_t type, bool later) {
    return gpus->Prepare({"input", memory, 1000, {BPS_CUDA, 0}, stream}, {"output", output, 1000, {type, 0}, stream},
                         later);
  };
  const absl::Status refused = prepare(memory, BPS_CUDA, false).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cudaStreamPerThread"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("output_later"));
  EXPECT_TRUE(prepare(memory, BPS_CUDA, true).ok()) << prepare(memory, BPS_CUDA, true).status();
  // Nothing waits for a result in memory of the host.
  EXPECT_TRUE(prepare(pinned, BPS_CUDA_HOST, false).ok()) << prepare(pinned, BPS_CUDA_HOST, false).status();
  EXPECT_TRUE(gpu->Release(memory).ok());
  EXPECT_TRUE(gpu->ReleaseHost(pinned).ok());
}

// One handle is the streams of two threads: that one of them is busy says nothing about the other.
TEST(GpusTest, AStreamOfAThreadIsBusyForNoOther) {
  const std::shared_ptr<Gpus> gpus = FakeGpus("devices=1");
  void* const memory = *gpus->Get(0)->gpu->Allocate(1000);
  for (const uintptr_t handle : {0, 2}) {
    const auto stream = reinterpret_cast<bps_device_stream>(handle);
    const auto round =
        gpus->Prepare({"input", nullptr, 0, Device(), nullptr}, {"output", memory, 1000, {BPS_CUDA, 0}, stream}, true);
    ASSERT_TRUE(round.ok()) << round.status();
    BusyStreams busy;
    busy.Add((*round)->output);
    EXPECT_EQ(busy.Has(**round), handle == 0);
  }
  EXPECT_TRUE(gpus->Get(0)->gpu->Release(memory).ok());
}

}  // namespace
}  // namespace byteps
