// Behaves, and logs every partition through the host table that it was given last.
#include <atomic>
#include <deque>

#include "abi/scheduler.h"

struct bps_scheduler {
  void* log;
  std::deque<bps_task> tasks;
};

static std::atomic<const bps_plugin_host*> host;
static int32_t Create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure*) {
  *scheduler = new bps_scheduler{args->log, {}};
  return BPS_OK;
}
static void Destroy(bps_scheduler* scheduler) { delete scheduler; }
static void Enqueue(bps_scheduler* scheduler, int64_t, const bps_task* task) {
  host.load()->log(scheduler->log, BPS_LOG_TRACE, __FILE__, __LINE__, "was given a partition");
  scheduler->tasks.push_back(*task);
}
static int32_t Next(bps_scheduler* scheduler, int64_t, const bps_budget* budgets, size_t count, uint64_t* id) {
  for (auto task = scheduler->tasks.begin(); task != scheduler->tasks.end(); ++task) {
    for (size_t i = 0; i < count; ++i) {
      if (budgets[i].peer != task->peer || budgets[i].tasks == 0 || budgets[i].bytes < task->bytes) continue;
      *id = task->id;
      scheduler->tasks.erase(task);
      return 1;
    }
  }
  return 0;
}
static void Sent(bps_scheduler*, int64_t, uint64_t) {}
static void Complete(bps_scheduler*, int64_t, uint64_t, int32_t) {}
static void Withdraw(bps_scheduler* scheduler, uint64_t id) {
  std::erase_if(scheduler->tasks, [id](const bps_task& task) { return task.id == id; });
}
static const bps_scheduler_table kTable = {sizeof(bps_scheduler_table),
                                           Create,
                                           Destroy,
                                           Enqueue,
                                           Next,
                                           Sent,
                                           Complete,
                                           Withdraw,
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           nullptr};
static const bps_scheduler_plugin kPlugin = {
    sizeof(bps_scheduler_plugin),
    {sizeof(bps_plugin_info), BPS_SCHEDULER_ABI_MINOR, "scheduler", "chatty", "1", "for tests"},
    &kTable};
extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* table,
                                                             const bps_scheduler_plugin** plugin) {
  host = table;
  *plugin = &kPlugin;
  return BPS_OK;
}
