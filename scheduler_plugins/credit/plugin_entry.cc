// The plugin's entry: what abi/scheduler.h asks for, with Scheduler behind it.

#include "scheduler_plugins/common/plugin_entry.h"

#include <new>
#include <optional>
#include <string>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "scheduler_plugins/credit/bound.h"
#include "scheduler_plugins/credit/scheduler.h"

namespace byteps::credit {
namespace {

struct Credit {
  using Scheduler = credit::Scheduler;
  static constexpr char kName[] = "credit";
  static constexpr char kDescription[] = "the most urgent first, within the credit of the path";

  static int32_t Make(const bps_plugin_host& host, const bps_scheduler_create_args& args, Scheduler** made,
                      bps_failure* failure) {
    const char* text = args.config == nullptr ? nullptr : host.config(args.config, "BYTEPS_SCHEDULING_CREDIT");
    std::string reason;
    const std::optional<Bound> bound = Bound::Parse(text, &reason);
    if (!bound) return host.fail(failure, BPS_INVALID_ARGUMENT, reason.c_str());
    // Results of a server go to many links, and what is done within a host to none.
    const bool paced = args.direction == BPS_DIRECTION_PUSH;
    *made = new (std::nothrow) Scheduler(*bound, scheduling::WindowOf(args), paced);
    return BPS_OK;
  }
};

}  // namespace
}  // namespace byteps::credit

extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host,
                                                             const bps_scheduler_plugin** plugin) {
  return byteps::scheduling::PluginEntry<byteps::credit::Credit>::Load(host, plugin);
}
