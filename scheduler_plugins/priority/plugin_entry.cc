// The plugin's face: abi/scheduler.h on the outside, Scheduler inside.

#include <atomic>
#include <new>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "scheduler_plugins/priority/scheduler.h"

namespace byteps::priority {
namespace {

// The same for every instance and good for the life of the process. Atomic because two sessions may load the plugin at
// the same time, with the same value.
std::atomic<const bps_plugin_host*> host = nullptr;

Scheduler* Of(bps_scheduler* scheduler) { return reinterpret_cast<Scheduler*>(scheduler); }

int32_t Create(const bps_scheduler_create_args*, bps_scheduler** scheduler, bps_failure* failure) {
  Scheduler* made = new (std::nothrow) Scheduler;
  if (made == nullptr) return host.load()->fail(failure, BPS_RESOURCE_EXHAUSTED, "out of memory");
  *scheduler = reinterpret_cast<bps_scheduler*>(made);
  return BPS_OK;
}

void Destroy(bps_scheduler* scheduler) { delete Of(scheduler); }

void Enqueue(bps_scheduler* scheduler, int64_t now, const bps_task* task) noexcept {
  Of(scheduler)->Enqueue(now, *task);
}

int32_t Next(bps_scheduler* scheduler, int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) noexcept {
  return Of(scheduler)->Next(now, budgets, count, id) ? 1 : 0;
}

void Sent(bps_scheduler* scheduler, int64_t, uint64_t id) noexcept { Of(scheduler)->Sent(id); }

void Complete(bps_scheduler* scheduler, int64_t, uint64_t id, int32_t) noexcept { Of(scheduler)->Complete(id); }

void Withdraw(bps_scheduler* scheduler, uint64_t id) noexcept { Of(scheduler)->Withdraw(id); }

void Stats(bps_scheduler* scheduler, bps_scheduler_stats* stats) { Of(scheduler)->Stats(stats); }

int64_t WakeAt(bps_scheduler* scheduler, int64_t) { return Of(scheduler)->WakeAt(); }

constexpr bps_scheduler_table kTable = {
    .struct_size = sizeof(bps_scheduler_table),
    .create = Create,
    .destroy = Destroy,
    .enqueue = Enqueue,
    .next = Next,
    .sent = Sent,
    .complete = Complete,
    .withdraw = Withdraw,
    .peers = nullptr,  // optional: queues appear and go with their tasks
    .stats = Stats,
    .wake_at = WakeAt,
};

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
