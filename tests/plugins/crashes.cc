// Crashes in its entry.
#include <csignal>

#include "tests/plugins/minimal_scheduler.h"
static constexpr bps_scheduler_plugin kPlugin = {sizeof(bps_scheduler_plugin), minimal::Info("crashes"),
                                                 &minimal::kTable};
int32_t bps_scheduler_plugin_v1(const bps_plugin_host*, const bps_scheduler_plugin** plugin) {
  std::raise(SIGSEGV);
  *plugin = &kPlugin;
  return BPS_OK;
}
