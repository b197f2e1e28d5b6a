// The plugin's face: abi/scheduler.h on the outside, Scheduler inside.

#include <atomic>
#include <new>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "scheduler_plugins/common/face.h"
#include "scheduler_plugins/priority/scheduler.h"

namespace byteps::priority {
namespace {

// The same for every instance and good for the life of the process. Atomic because two sessions may load the plugin at
// the same time, with the same value.
std::atomic<const bps_plugin_host*> host = nullptr;

int32_t Create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure* failure) {
  Scheduler* made = new (std::nothrow) Scheduler(scheduling::WindowOf(*args));
  return scheduling::Face<Scheduler>::Give(host, made, scheduler, failure);
}

constexpr bps_scheduler_table kTable = scheduling::Face<Scheduler>::Table(Create);

constexpr bps_scheduler_plugin kPlugin = {
    .struct_size = sizeof(bps_scheduler_plugin),
    .info = {.struct_size = sizeof(bps_plugin_info),
             .abi_minor = BPS_SCHEDULER_ABI_MINOR,
             .kind = "scheduler",
             .name = "priority",
             .version = "1.0",
             .description = "the most urgent first"},
    .table = &kTable,
};

}  // namespace
}  // namespace byteps::priority

extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* table,
                                                             const bps_scheduler_plugin** plugin) {
  byteps::priority::host = table;
  *plugin = &byteps::priority::kPlugin;
  return BPS_OK;
}
