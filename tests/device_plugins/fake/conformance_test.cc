// The fake GPU under the conformance suite of devices, in each of its schedules.

#include "abi/device.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"
#include "tests/device/device_test.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps::testing {
namespace {

void With(const char* options) { EXPECT_EQ(bps_fake_gpu()->reset(options), 1); }

INSTANTIATE_TEST_SUITE_P(
    Fake, DeviceTest,
    ::testing::Values(
        DeviceUnderTest{"late", bps_device_plugin_v1_fake, [] { With("devices=2,schedule=late,seed=1"); }},
        DeviceUnderTest{"early", bps_device_plugin_v1_fake, [] { With("devices=2,schedule=early"); }},
        DeviceUnderTest{"random_3", bps_device_plugin_v1_fake, [] { With("devices=2,schedule=random,seed=3"); }},
        DeviceUnderTest{"random_4", bps_device_plugin_v1_fake, [] { With("devices=2,schedule=random,seed=4"); }}),
    DeviceUnderTest::Name);

}  // namespace
}  // namespace byteps::testing
