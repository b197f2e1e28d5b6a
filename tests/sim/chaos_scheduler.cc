#include "tests/sim/chaos_scheduler.h"

#include <algorithm>
#include <map>
#include <vector>

#include "abi/byteps.h"
#include "transport_plugins/sim/random.h"

namespace byteps {
namespace {

struct Chaos {
  sim::Random random;
  uint64_t credit;
  std::vector<bps_task> queue;
  std::map<uint64_t, uint64_t> under_way;  // bytes by task
  uint64_t bytes = 0;

  void Ended(uint64_t id) {
    auto it = under_way.find(id);
    if (it == under_way.end()) return;
    bytes -= it->second;
    under_way.erase(it);
  }
};

Chaos& Of(bps_scheduler* scheduler) { return *reinterpret_cast<Chaos*>(scheduler); }

int32_t Create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure*) {
  const auto* config = static_cast<const ChaosSchedulerConfig*>(static_cast<const PluginConfig*>(args->config));
  *scheduler = reinterpret_cast<bps_scheduler*>(new Chaos{sim::Random(config->seed), config->credit, {}, {}, 0});
  return BPS_OK;
}

void Destroy(bps_scheduler* scheduler) { delete &Of(scheduler); }

void Enqueue(bps_scheduler* scheduler, int64_t, const bps_task* task) { Of(scheduler).queue.push_back(*task); }

int32_t Next(bps_scheduler* scheduler, int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  Chaos& chaos = Of(scheduler);
  std::vector<size_t> fitting;
  for (size_t i = 0; i < chaos.queue.size(); ++i) {
    const bps_task& task = chaos.queue[i];
    if (task.earliest > now) continue;
    if (chaos.credit != 0 && !chaos.under_way.empty() && chaos.bytes + task.bytes > chaos.credit) continue;
    const bool fits = std::any_of(budgets, budgets + count, [&](const bps_budget& budget) {
      return budget.peer == task.peer && budget.tasks > 0 && task.bytes <= budget.bytes;
    });
    if (fits) fitting.push_back(i);
  }
  if (fitting.empty()) return 0;
  const size_t chosen = fitting[chaos.random.Below(fitting.size())];
  const bps_task task = chaos.queue[chosen];
  chaos.queue.erase(chaos.queue.begin() + static_cast<ptrdiff_t>(chosen));
  chaos.under_way[task.id] = task.bytes;
  chaos.bytes += task.bytes;
  *id = task.id;
  return 1;
}

void Sent(bps_scheduler* scheduler, int64_t, uint64_t id) { Of(scheduler).Ended(id); }

void Complete(bps_scheduler* scheduler, int64_t, uint64_t id, int32_t) { Of(scheduler).Ended(id); }

void Withdraw(bps_scheduler* scheduler, uint64_t id) {
  std::erase_if(Of(scheduler).queue, [&](const bps_task& task) { return task.id == id; });
}

constexpr bps_scheduler_table kTable = {
    .struct_size = sizeof(bps_scheduler_table),
    .create = Create,
    .destroy = Destroy,
    .enqueue = Enqueue,
    .next = Next,
    .sent = Sent,
    .complete = Complete,
    .withdraw = Withdraw,
    .peers = nullptr,
    .stats = nullptr,
    .wake_at = nullptr,
};

constexpr bps_scheduler_plugin kPlugin = {
    .struct_size = sizeof(bps_scheduler_plugin),
    .info =
        {
            .struct_size = sizeof(bps_plugin_info),
            .abi_minor = BPS_SCHEDULER_ABI_MINOR,
            .kind = "scheduler",
            .name = "chaos",
            .version = "1",
            .description = "any task that fits, drawn at random",
        },
    .table = &kTable,
};

}  // namespace

const bps_scheduler_plugin& ChaosSchedulerPlugin() { return kPlugin; }

}  // namespace byteps
