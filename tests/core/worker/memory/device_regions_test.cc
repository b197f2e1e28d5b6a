#include "core/worker/memory/device_regions.h"

#include <fcntl.h>

#include <cstddef>
#include <memory>
#include <set>
#include <vector>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "core/plugin/plugin_host.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps {
namespace {

// What a transport was told of memory.
struct Told {
  std::vector<bps_device_memory> memory;  // ever
  std::set<int*> regions;
  bool dmabufs_open = true;
  bool full = false;
};

Told* Unwrap(bps_transport* transport) { return reinterpret_cast<Told*>(transport); }

bps_transport_table Table() {
  bps_transport_table table{};
  table.struct_size = sizeof table;
  table.close = [](bps_transport*) {};
  table.caps = [](bps_transport*, bps_transport_caps* caps) { caps->flags = BPS_TRANSPORT_CUDA; };
  table.reg_device = [](bps_transport* transport, const bps_device_memory* memory, bps_region** region,
                        bps_failure*) -> int32_t {
    Told* told = Unwrap(transport);
    if (told->full) return BPS_RESOURCE_EXHAUSTED;
    told->memory.push_back(*memory);
    told->dmabufs_open &= ::fcntl(memory->dmabuf, F_GETFD) >= 0;
    *region = reinterpret_cast<bps_region*>(*told->regions.insert(new int).first);
    return BPS_OK;
  };
  table.unreg = [](bps_transport* transport, bps_region* region) {
    auto* made = reinterpret_cast<int*>(region);
    Unwrap(transport)->regions.erase(made);
    delete made;
  };
  return table;
}

class DeviceRegionsTest : public testing::Test {
 protected:
  DeviceRegionsTest()
      : table_(Table()), transport_(Transport::Adopt(&table_, reinterpret_cast<bps_transport*>(&told_))) {
    const bps_device_plugin* plugin = nullptr;
    EXPECT_EQ(bps_device_plugin_v1_fake(PluginHost(), &plugin), BPS_OK);
    gpu_ = Gpu::Open(*plugin, 0, nullptr, nullptr).value();
  }

  DeviceAllocation Allocate(uint64_t size) {
    void* base = gpu_->Allocate(size).value();
    const bps_device_pointer pointer = gpu_->Pointer(base).value();
    return {gpu_.get(), static_cast<std::byte*>(pointer.base), pointer.size, pointer.identity};
  }

  Told told_;
  const bps_transport_table table_;
  Transport transport_;
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(DeviceRegionsTest, OneRegistrationForTheLifeOfAnAllocation) {
  DeviceRegions regions(&transport_);
  const DeviceAllocation allocation = Allocate(1 << 20);
  bps_region* const first = (*regions.Find(allocation))->get();
  for (int step = 0; step < 100; ++step) EXPECT_EQ((*regions.Find(allocation))->get(), first);
  ASSERT_EQ(told_.memory.size(), 1u);
  EXPECT_EQ(told_.memory[0].base, allocation.base);
  EXPECT_EQ(told_.memory[0].size, uint64_t{1} << 20);
  EXPECT_EQ(told_.memory[0].type, BPS_CUDA);
  EXPECT_EQ(told_.memory[0].id, 0);
  EXPECT_TRUE(told_.dmabufs_open);
}

// An address that is given out again is other memory.
TEST_F(DeviceRegionsTest, AnotherAllocationAtTheSameAddressIsRegisteredAnew) {
  DeviceRegions regions(&transport_);
  const DeviceAllocation allocation = Allocate(1 << 20);
  ASSERT_TRUE(regions.Find(allocation).ok());
  DeviceAllocation later = allocation;
  later.identity += 1'000'000;
  later.size /= 2;
  ASSERT_TRUE(regions.Find(later).ok());
  EXPECT_EQ(told_.memory.size(), 2u);
  EXPECT_EQ(told_.regions.size(), 1u) << "what was there is registered still";
  EXPECT_EQ(regions.size(), 1u);
}

TEST_F(DeviceRegionsTest, WhatIsForgottenGoesWithItsLastHolder) {
  DeviceRegions regions(&transport_);
  const DeviceAllocation allocation = Allocate(4096);
  std::shared_ptr<Region> held = regions.Find(allocation).value();
  regions.Forget(allocation);
  EXPECT_EQ(told_.regions.size(), 1u);
  held = nullptr;
  EXPECT_TRUE(told_.regions.empty());
  ASSERT_TRUE(regions.Find(allocation).ok());
  EXPECT_EQ(told_.memory.size(), 2u);
}

TEST_F(DeviceRegionsTest, AtMostSoManyTheLeastRecentGoes) {
  DeviceRegions regions(&transport_);
  const DeviceAllocation first = Allocate(4096);
  ASSERT_TRUE(regions.Find(first).ok());
  for (size_t i = 0; i < DeviceRegions::kMost; ++i) {
    ASSERT_TRUE(regions.Find(Allocate(4096)).ok());
    ASSERT_TRUE(regions.Find(first).ok());
  }
  EXPECT_EQ(regions.size(), DeviceRegions::kMost);
  EXPECT_EQ(told_.regions.size(), DeviceRegions::kMost);
  EXPECT_EQ(told_.memory.size(), DeviceRegions::kMost + 1) << "the one that is used went";
}

TEST_F(DeviceRegionsTest, WhatCannotBeRegistered) {
  DeviceRegions regions(&transport_);
  DeviceAllocation allocation = Allocate(4096);
  told_.full = true;
  EXPECT_TRUE(absl::IsResourceExhausted(regions.Find(allocation).status()));
  told_.full = false;
  allocation.identity = 0;
  EXPECT_TRUE(absl::IsUnimplemented(regions.Find(allocation).status()));
  EXPECT_EQ(regions.size(), 0u);
}

}  // namespace
}  // namespace byteps
