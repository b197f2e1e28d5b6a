// fake_gpus.h - the GPUs of a session, simulated.
//
//     const std::shared_ptr<Gpus> gpus = FakeGpus("devices=2");
//     const std::shared_ptr<Gpu> gpu = gpus->Get(0)->gpu;
//
// The simulation begins anew with each call: what was made before is gone. `options`: those of BYTEPS_FAKE_GPU.
#ifndef BYTEPS_TESTS_CORE_WORKER_DEVICE_FAKE_GPUS_H_
#define BYTEPS_TESTS_CORE_WORKER_DEVICE_FAKE_GPUS_H_

#include <memory>

#include "abi/device.h"
#include "core/base/log.h"
#include "core/plugin/plugin_host.h"
#include "core/worker/device/gpus.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps {

inline std::shared_ptr<Gpus> FakeGpus(const char* options) {
  LogOptions quiet;
  quiet.level = LogLevel::kFatal;
  static const Logger log(quiet);
  EXPECT_EQ(bps_fake_gpu()->reset(options), 1);
  return std::make_shared<Gpus>(
      []() -> absl::StatusOr<const bps_device_plugin*> {
        const bps_device_plugin* plugin = nullptr;
        bps_device_plugin_v1_fake(PluginHost(), &plugin);
        return plugin;
      },
      nullptr, &log);
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_CORE_WORKER_DEVICE_FAKE_GPUS_H_
