// The plugin's face: abi/scheduler.h on the outside, Scheduler inside.

#include <atomic>
#include <new>
#include <optional>
#include <string>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "scheduler_plugins/common/face.h"
#include "scheduler_plugins/credit/bound.h"
#include "scheduler_plugins/credit/scheduler.h"

namespace byteps::credit {
namespace {

// The same for every instance and good for the life of the process. Atomic because two sessions may load the plugin at
// the same time, with the same value.
std::atomic<const bps_plugin_host*> host = nullptr;

int32_t Create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure* failure) {
  const char* text = args->config == nullptr ? nullptr : host.load()->config(args->config, "BYTEPS_SCHEDULING_CREDIT");
  std::string reason;
  const std::optional<Bound> bound = Bound::Parse(text, &reason);
  if (!bound) return host.load()->fail(failure, BPS_INVALID_ARGUMENT, reason.c_str());
  // Results of a server go to many links, and what is done within a host to none.
  const bool paced = args->direction == BPS_DIRECTION_PUSH;
  Scheduler* made = new (std::nothrow) Scheduler(*bound, scheduling::WindowOf(*args), paced);
  return scheduling::Face<Scheduler>::Give(host, made, scheduler, failure);
}

constexpr bps_scheduler_table kTable = scheduling::Face<Scheduler>::Table(Create);

constexpr bps_scheduler_plugin kPlugin = {
    .struct_size = sizeof(bps_scheduler_plugin),
    .info = {.struct_size = sizeof(bps_plugin_info),
             .abi_minor = BPS_SCHEDULER_ABI_MINOR,
             .kind = "scheduler",
             .name = "credit",
             .version = "1.0",
             .description = "the most urgent first, within the credit of the path"},
    .table = &kTable,
};

}  // namespace
}  // namespace byteps::credit

extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* table,
                                                             const bps_scheduler_plugin** plugin) {
  byteps::credit::host = table;
  *plugin = &byteps::credit::kPlugin;
  return BPS_OK;
}
