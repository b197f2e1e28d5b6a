// plugin_entry.h - what a scheduler plugin hands to the library, for a C++ class as common/face.h wants it.
//
//     struct Fifo {
//       using Scheduler = fifo::Scheduler;
//       static constexpr char kName[] = "fifo", kDescription[] = "first come, first served";
//       // `made` gets a new Scheduler, or nullptr without memory; BPS_OK, or a code after host.fail.
//       static int32_t Make(const bps_plugin_host& host, const bps_scheduler_create_args& args, Scheduler** made,
//                           bps_failure* failure);
//     };
//     extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host,
//                                                                  const bps_scheduler_plugin** plugin) {
//       return PluginEntry<Fifo>::Load(host, plugin);
//     }
//
// Threads: Load on any, also several at a time.
#ifndef BYTEPS_SCHEDULER_PLUGINS_COMMON_PLUGIN_ENTRY_H_
#define BYTEPS_SCHEDULER_PLUGINS_COMMON_PLUGIN_ENTRY_H_

#include <atomic>
#include <cstdint>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "scheduler_plugins/common/face.h"

namespace byteps::scheduling {

template <typename Kind>
class PluginEntry {
 public:
  static int32_t Load(const bps_plugin_host* host, const bps_scheduler_plugin** plugin) {
    host_ = host;
    *plugin = &kPlugin;
    return BPS_OK;
  }

 private:
  static int32_t Create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure* failure) {
    const bps_plugin_host& host = *host_.load();
    typename Kind::Scheduler* made = nullptr;
    if (const int32_t code = Kind::Make(host, *args, &made, failure); code != BPS_OK) return code;
    if (made == nullptr) return host.fail(failure, BPS_RESOURCE_EXHAUSTED, "out of memory");
    *scheduler = reinterpret_cast<bps_scheduler*>(made);
    return BPS_OK;
  }

  // The same for every instance and good for the life of the process. Atomic because two sessions may load the plugin
  // at the same time, with the same value.
  static inline std::atomic<const bps_plugin_host*> host_ = nullptr;

  static constexpr bps_scheduler_table kTable = Face<typename Kind::Scheduler>::Table(Create);
  static constexpr bps_scheduler_plugin kPlugin = {
      .struct_size = sizeof(bps_scheduler_plugin),
      .info = {.struct_size = sizeof(bps_plugin_info),
               .abi_minor = BPS_SCHEDULER_ABI_MINOR,
               .kind = "scheduler",
               .name = Kind::kName,
               .version = "1.0",
               .description = Kind::kDescription},
      .table = &kTable,
  };
};

}  // namespace byteps::scheduling

#endif  // BYTEPS_SCHEDULER_PLUGINS_COMMON_PLUGIN_ENTRY_H_
