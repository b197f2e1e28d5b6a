// The CUDA plugin under the conformance suite of devices, on a driver whose GPUs are fake ones.

#include <dlfcn.h>

#include <cstdlib>

#include "abi/device.h"
#include "gtest/gtest.h"
#include "tests/device/device_test.h"

extern "C" int32_t bps_device_plugin_v1_cuda(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps::testing {
namespace {

// Under the name libcuda.so.1, by which the plugin finds it then.
void LoadTheStandIn() {
  ::setenv("BYTEPS_FAKE_GPU", "devices=2,schedule=late,seed=2", 1);
  EXPECT_NE(::dlopen("tests/device_plugins/cuda/standin/libcuda.so.1", RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
}

INSTANTIATE_TEST_SUITE_P(StandIn, DeviceTest,
                         ::testing::Values(DeviceUnderTest{"cuda", bps_device_plugin_v1_cuda, LoadTheStandIn}),
                         DeviceUnderTest::Name);

}  // namespace
}  // namespace byteps::testing
