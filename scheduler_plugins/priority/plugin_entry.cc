// The plugin's entry: what abi/scheduler.h asks for, with Scheduler behind it.

#include "scheduler_plugins/common/plugin_entry.h"

#include <new>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "scheduler_plugins/priority/scheduler.h"

namespace byteps::priority {
namespace {

struct Priority {
  using Scheduler = priority::Scheduler;
  static constexpr char kName[] = "priority";
  static constexpr char kDescription[] = "the most urgent first";

  static int32_t Make(const bps_plugin_host&, const bps_scheduler_create_args& args, Scheduler** made, bps_failure*) {
    *made = new (std::nothrow) Scheduler(scheduling::WindowOf(args));
    return BPS_OK;
  }
};

}  // namespace
}  // namespace byteps::priority

extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host,
                                                             const bps_scheduler_plugin** plugin) {
  return byteps::scheduling::PluginEntry<byteps::priority::Priority>::Load(host, plugin);
}
