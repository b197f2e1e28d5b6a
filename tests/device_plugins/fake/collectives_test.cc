// The collectives of the fake GPUs.

#include "tests/device_plugins/fake/collectives.h"

#include "abi/device.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host*, const bps_device_plugin**);

namespace byteps {

INSTANTIATE_TEST_SUITE_P(Schedules, CollectivesTest,
                         ::testing::ValuesIn(Schedules({bps_device_plugin_v1_fake, bps_fake_gpu})));

}  // namespace byteps
