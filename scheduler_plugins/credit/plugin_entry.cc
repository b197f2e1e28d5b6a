// The plugin's face: abi/scheduler.h on the outside, Scheduler inside.

#include <atomic>
#include <new>
#include <optional>
#include <string>

#include "abi/byteps.h"
#include "abi/scheduler.h"
#include "scheduler_plugins/credit/bound.h"
#include "scheduler_plugins/credit/scheduler.h"

namespace byteps::credit {
namespace {

// The same for every instance and good for the life of the process. Atomic because two sessions may load the plugin at
// the same time, with the same value.
std::atomic<const bps_plugin_host*> host = nullptr;

Scheduler* Of(bps_scheduler* scheduler) { return reinterpret_cast<Scheduler*>(scheduler); }

int32_t Create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure* failure) {
  const char* text = args->config == nullptr ? nullptr : host.load()->config(args->config, "BYTEPS_SCHEDULING_CREDIT");
  std::string reason;
  const std::optional<Bound> bound = Bound::Parse(text, &reason);
  if (!bound) return host.load()->fail(failure, BPS_INVALID_ARGUMENT, reason.c_str());
  Scheduler* made = new (std::nothrow) Scheduler(*bound);
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

void Sent(bps_scheduler* scheduler, int64_t now, uint64_t id) noexcept { Of(scheduler)->Sent(now, id); }

void Complete(bps_scheduler* scheduler, int64_t, uint64_t id, int32_t) noexcept { Of(scheduler)->Complete(id); }

void Withdraw(bps_scheduler* scheduler, uint64_t id) noexcept { Of(scheduler)->Withdraw(id); }

void Peers(bps_scheduler* scheduler, const uint32_t* peers, size_t count) noexcept {
  Of(scheduler)->Peers(peers, count);
}

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
    .peers = Peers,
    .stats = Stats,
    .wake_at = WakeAt,
};

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
