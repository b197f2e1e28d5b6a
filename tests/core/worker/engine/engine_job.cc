#include "tests/core/worker/engine/engine_job.h"

#include "abi/scheduler.h"
#include "core/plugin/plugin_host.h"

extern "C" int32_t bps_scheduler_plugin_v1_fifo(const bps_plugin_host* host, const bps_scheduler_plugin** plugin);

namespace byteps {

Scheduler FifoScheduler() {
  const bps_scheduler_plugin* plugin = nullptr;
  EXPECT_EQ(bps_scheduler_plugin_v1_fifo(PluginHost(), &plugin), BPS_OK);
  return *Scheduler::Create(*plugin, BPS_DIRECTION_PUSH, nullptr, nullptr);
}

}  // namespace byteps
