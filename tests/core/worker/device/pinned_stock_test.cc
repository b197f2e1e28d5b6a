// Pinned areas are made once, and go to who needs one next.
#include "core/worker/device/pinned_stock.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "abi/device.h"
#include "core/worker/device/gpus.h"
#include "core/worker/memory/buffer.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"
#include "tests/core/worker/device/fake_gpus.h"

namespace byteps {
namespace {

class PinnedStockTest : public testing::Test {
 protected:
  std::unique_ptr<PinnedArea> Take(Time now, uint64_t bytes, uint64_t owner, int32_t gpu = 0) {
    absl::StatusOr<std::unique_ptr<PinnedArea>> area = stock_.Take(now, gpus_->Get(gpu)->gpu, bytes, owner);
    EXPECT_TRUE(area.ok()) << area.status();
    EXPECT_GE((*area)->buffer()->size(), bytes);
    return *std::move(area);
  }
  uint64_t made() const {
    fake_gpu_counts counts;
    bps_fake_gpu()->counts(&counts);
    return counts.registrations;
  }

  const std::shared_ptr<Gpus> gpus_ = FakeGpus("devices=2");
  PinnedStock stock_{std::make_shared<BufferTable>()};
};

TEST_F(PinnedStockTest, SizesAreRoundedUpByAtMostAQuarter) {
  EXPECT_EQ(PinnedStock::Rounded(1), 4096u);
  for (uint64_t bytes = 5000; bytes < (uint64_t{1} << 40); bytes += bytes / 3) {
    const uint64_t rounded = PinnedStock::Rounded(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_LE(rounded, std::max(bytes + bytes / 4, bytes + 4096));
    EXPECT_EQ(PinnedStock::Rounded(rounded), rounded);
  }
}

TEST_F(PinnedStockTest, AnOwnerFindsItsAreaAgain) {
  Time now = kSecond;
  for (int round = 0; round < 10; ++round) {
    std::unique_ptr<PinnedArea> a = Take(now, 100'000, 1), b = Take(now, 100'000, 2);
    stock_.GiveBack(now, std::move(a), 1);
    stock_.GiveBack(now, std::move(b), 2);
    now += 10 * kSecond;
  }
  // One for each in the first round; in the second one nobody else's was taken.
  EXPECT_EQ(made(), 2u);
}

TEST_F(PinnedStockTest, WhatIsUsedOnceIsEverybodys) {
  Time now = kSecond;
  for (uint64_t owner = 1; owner <= 100; ++owner) {
    stock_.GiveBack(now, Take(now, 100'000, owner), owner);
    now += PinnedStock::KeepTime(1) / 5;
  }
  EXPECT_LE(made(), 12u);
}

TEST_F(PinnedStockTest, ManyThatAreUsedOnceSoon) {
  Time now = kSecond;
  for (uint64_t owner = 1; owner <= 2'000; ++owner) {
    stock_.GiveBack(now, Take(now, 5'000, owner), owner);
    now += kMillisecond;
  }
  EXPECT_LE(made(), PinnedStock::kFew + 300);
}

TEST_F(PinnedStockTest, WhatIsUsedAgainIsNot) {
  Time now = kSecond;
  for (int round = 0; round < 2; ++round) stock_.GiveBack(now, Take(now, 100'000, 1), 1);
  EXPECT_EQ(made(), 1u);
  now += 60 * kSecond;
  stock_.GiveBack(now, Take(now, 100'000, 2), 2);
  EXPECT_EQ(made(), 2u);
}

TEST_F(PinnedStockTest, NotOfAnotherGpuAndNotMuchTooLarge) {
  stock_.GiveBack(0, Take(0, 1'000'000, 0), 0);
  const std::unique_ptr<PinnedArea> other = Take(0, 1'000'000, 0, 1), small = Take(0, 10'000, 0);
  EXPECT_EQ(made(), 3u);
  const std::unique_ptr<PinnedArea> same = Take(0, 900'000, 0);
  EXPECT_EQ(made(), 3u);
}

TEST_F(PinnedStockTest, NoMemoryLeft) {
  bps_fake_gpu()->fail("register_host", 0, BPS_RESOURCE_EXHAUSTED);
  const auto area = stock_.Take(0, gpus_->Get(0)->gpu, 1000, 1);
  EXPECT_EQ(area.status().code(), absl::StatusCode::kResourceExhausted);
  Take(0, 1000, 1);
}

}  // namespace
}  // namespace byteps
