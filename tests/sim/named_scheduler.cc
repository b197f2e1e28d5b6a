#include "tests/sim/named_scheduler.h"

#include <stdexcept>

extern "C" {
int32_t bps_scheduler_plugin_v1_credit(const bps_plugin_host*, const bps_scheduler_plugin**);
int32_t bps_scheduler_plugin_v1_fifo(const bps_plugin_host*, const bps_scheduler_plugin**);
int32_t bps_scheduler_plugin_v1_priority(const bps_plugin_host*, const bps_scheduler_plugin**);
}

namespace byteps {

const bps_scheduler_plugin& NamedSchedulerPlugin(const std::string& name) {
  for (const bps_scheduler_plugin_fn entry :
       {bps_scheduler_plugin_v1_credit, bps_scheduler_plugin_v1_fifo, bps_scheduler_plugin_v1_priority}) {
    const bps_scheduler_plugin* plugin = nullptr;
    if (entry(PluginHost(), &plugin) == BPS_OK && name == plugin->info.name) return *plugin;
  }
  throw std::invalid_argument("no scheduler " + name);
}

}  // namespace byteps
