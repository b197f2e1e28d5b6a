#include "core/plugin/gpu.h"

#include <cstring>
#include <memory>
#include <string>

#include "abi/byteps.h"
#include "device_plugins/fake/control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps {
namespace {

using testing::HasSubstr;

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(bps_fake_gpu()->reset("devices=2"), 1);
    ASSERT_EQ(bps_device_plugin_v1_fake(PluginHost(), &plugin_), BPS_OK);
  }
  absl::StatusOr<std::unique_ptr<Gpu>> Open(int32_t index) { return Gpu::Open(*plugin_, index, nullptr, nullptr); }

  const bps_device_plugin* plugin_ = nullptr;
};

TEST_F(GpuTest, CopiesAndOrders) {
  absl::StatusOr<std::unique_ptr<Gpu>> opened = Open(1);
  ASSERT_TRUE(opened.ok()) << opened.status();
  Gpu& device = **opened;
  EXPECT_EQ(device.index(), 1);
  EXPECT_EQ(device.name(), "GPU 1 (fake GPU)");
  auto* host = static_cast<char*>(*device.AllocateHost(64));
  void* memory = *device.Allocate(64);
  void* other = *device.Allocate(64);
  bps_device_stream stream = *device.StreamCreate(0), second = *device.StreamCreate(0);
  bps_device_event* event = *device.EventCreate();
  EXPECT_EQ(device.Pointer(memory)->type, BPS_CUDA);
  EXPECT_EQ(device.StreamState(stream)->id, 1);
  std::memset(host, 5, 64);
  ASSERT_TRUE(device.CopyToDevice(memory, host, 64, stream).ok());
  ASSERT_TRUE(device.CopyWithin(other, memory, 64, stream).ok());
  ASSERT_TRUE(device.EventRecord(event, stream).ok());
  ASSERT_TRUE(device.StreamWait(second, event).ok());
  ASSERT_TRUE(device.Synchronize(second).ok());
  std::memset(host, 0, 64);
  ASSERT_TRUE(device.CopyToHost(host, other, 64, second).ok());
  ASSERT_TRUE(device.EventRecord(event, second).ok());
  while (!*device.EventQuery(event)) {
  }
  EXPECT_EQ(host[63], 5);
  device.EventDestroy(event);
  EXPECT_TRUE(device.StreamDestroy(stream).ok());
  EXPECT_TRUE(device.Release(memory).ok());
  EXPECT_TRUE(device.ReleaseHost(host).ok());
}

TEST_F(GpuTest, ErrorsNameTheDeviceAndWhatWasAsked) {
  EXPECT_THAT(std::string(Open(2).status().message()), HasSubstr("GPU 2 could not be opened: there is no fake device"));
  std::unique_ptr<Gpu> device = *Open(0);
  bps_fake_gpu()->fail("allocate_host", 0, BPS_RESOURCE_EXHAUSTED);
  const absl::Status failed = device->AllocateHost(4096).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("GPU 0 (fake GPU): allocating 4096 bytes of pinned memory: "));
  bps_device_event* event = *device->EventCreate();
  bps_fake_gpu()->lose(0);
  EXPECT_EQ(device->EventQuery(event).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace byteps
