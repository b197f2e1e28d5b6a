// The plugin's entry: what abi/scheduler.h asks for, with Scheduler behind it.

#include "scheduler_plugins/common/plugin_entry.h"

#include <new>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "scheduler_plugins/fifo/scheduler.h"

namespace byteps::fifo {
namespace {

struct Fifo {
  using Scheduler = fifo::Scheduler;
  static constexpr char kName[] = "fifo";
  static constexpr char kDescription[] = "first come, first served";

  static int32_t Make(const bps_plugin_host&, const bps_scheduler_create_args&, Scheduler** made, bps_failure*) {
    *made = new (std::nothrow) Scheduler;
    return BPS_OK;
  }
};

}  // namespace
}  // namespace byteps::fifo

extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host,
                                                             const bps_scheduler_plugin** plugin) {
  return byteps::scheduling::PluginEntry<byteps::fifo::Fifo>::Load(host, plugin);
}
