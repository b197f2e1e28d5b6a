// The CUDA plugin under the conformance suite of devices, on the GPUs of this machine; without any it skips itself.

#include "abi/device.h"
#include "gtest/gtest.h"
#include "tests/device/device_test.h"

extern "C" int32_t bps_device_plugin_v1_cuda(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps::testing {

INSTANTIATE_TEST_SUITE_P(Hardware, DeviceTest, ::testing::Values(DeviceUnderTest{"cuda", bps_device_plugin_v1_cuda}),
                         DeviceUnderTest::Name);

}  // namespace byteps::testing
