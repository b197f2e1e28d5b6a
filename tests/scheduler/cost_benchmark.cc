// cost_benchmark - what a partition costs in each scheduler, with so many queued.
//
//     bazel run -c opt //tests/scheduler:cost_benchmark [-- <tasks> <peers>]
//
// "plugin": enqueue, next, sent and complete of the plugin alone; "checked": the same through core/plugin/scheduler.h,
// which remembers each task to hold the plugin to its contract. The queue stays full: one comes for each that goes. In
// the last line all have agreed on the rate of a link, 24 MB/s, so credit has its pace and makes the caller wait (time
// is virtual) before nearly every task: what the question in vain costs, and asking until when, is in.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

#include "core/plugin/plugin_host.h"
#include "core/plugin/scheduler.h"

extern "C" {
int32_t bps_scheduler_plugin_v1_credit(const bps_plugin_host*, const bps_scheduler_plugin**);
int32_t bps_scheduler_plugin_v1_fifo(const bps_plugin_host*, const bps_scheduler_plugin**);
int32_t bps_scheduler_plugin_v1_priority(const bps_plugin_host*, const bps_scheduler_plugin**);
}

namespace byteps {
namespace {

constexpr uint64_t kRate = 24'000'000;  // bytes per second

struct Shape {
  uint64_t tasks = 100000;
  uint32_t peers = 4;
  bool paced = false;
};

bps_task TaskOf(uint64_t id, const Shape& shape, std::mt19937_64& random) {
  bps_task task = {};
  task.struct_size = sizeof task;
  task.id = id;
  task.tensor = task.order = random() % 1000;
  task.priority = -static_cast<int64_t>(task.order);
  task.part = static_cast<uint32_t>(random() % 64);
  task.peer = static_cast<uint32_t>(random() % shape.peers);
  task.bytes = 1 + random() % (512 << 10);
  if (shape.paced)
    task.round = static_cast<uint32_t>(1 + std::min<uint64_t>(id / 2000, 10));  // behind the rounds of learning
  return task;
}

// Of this thread's CPU time: others on the machine do not count.
double Nanoseconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// ns per task, over as many as are queued.
template <typename Enqueue, typename Next>
double Measure(const Shape& shape, const Enqueue& enqueue, const Next& next) {
  std::mt19937_64 random(1);
  std::vector<bps_task> tasks;
  for (uint64_t id = 1; id <= 2 * shape.tasks; ++id) tasks.push_back(TaskOf(id, shape, random));
  for (uint64_t i = 0; i < shape.tasks; ++i) enqueue(tasks[i]);
  const double begin = Nanoseconds();
  for (uint64_t i = shape.tasks; i < 2 * shape.tasks; ++i) {
    next();
    enqueue(tasks[i]);
  }
  return (Nanoseconds() - begin) / static_cast<double>(shape.tasks);
}

void Run(const Shape& shape, bps_scheduler_plugin_fn entry) {
  const bps_scheduler_plugin* plugin = nullptr;
  if (entry(PluginHost(), &plugin) != BPS_OK) std::abort();
  std::vector<bps_budget> budgets;
  for (uint32_t peer = 0; peer < shape.peers; ++peer) budgets.push_back({peer, 1, UINT64_MAX});
  const bps_scheduler_table& table = *plugin->table;
  bps_scheduler_create_args args = {};
  args.struct_size = sizeof args;
  bps_scheduler* scheduler = nullptr;
  bps_failure failure;
  if (table.create(&args, &scheduler, &failure) != BPS_OK) std::abort();
  int64_t now = 0;
  uint64_t waits = 0;
  const double alone = Measure(
      shape, [&](const bps_task& task) { table.enqueue(scheduler, ++now, &task); },
      [&] {
        uint64_t id = 0;
        while (table.next(scheduler, ++now, budgets.data(), budgets.size(), &id) != 1) {
          now = table.wake_at(scheduler, now);
          ++waits;
        }
        table.sent(scheduler, ++now, id);
        table.complete(scheduler, now, id, BPS_OK);
        if (shape.paced) table.agreed(scheduler, now, kRate);
      });
  table.destroy(scheduler);
  Scheduler checked = *Scheduler::Create(*plugin, BPS_DIRECTION_PUSH, nullptr, nullptr);
  const double all = Measure(
      shape, [&](const bps_task& task) { checked.Enqueue(++now, task); },
      [&] {
        std::optional<Scheduler::Started> next;
        while (!(next = *checked.Next(++now, budgets))) now = checked.WakeAt(now);
        checked.Sent(++now, next->id);
        checked.Complete(now, next->id, BPS_OK);
        if (shape.paced) checked.Agreed(now, kRate);
      });
  std::printf("%-10s %10.0f %10.0f %10.2f\n", shape.paced ? "paced" : plugin->info.name, alone, all,
              static_cast<double>(waits) / static_cast<double>(shape.tasks));
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  byteps::Shape shape;
  if (argc > 1) shape.tasks = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) shape.peers = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  if (shape.tasks == 0 || shape.peers == 0) return 2;
  std::printf("ns per task, %llu queued, %u peers\n%-10s %10s %10s %10s\n",
              static_cast<unsigned long long>(shape.tasks), shape.peers, "scheduler", "plugin", "checked", "waits");
  byteps::Run(shape, bps_scheduler_plugin_v1_fifo);
  byteps::Run(shape, bps_scheduler_plugin_v1_priority);
  byteps::Run(shape, bps_scheduler_plugin_v1_credit);
  shape.paced = true;
  byteps::Run(shape, bps_scheduler_plugin_v1_credit);
  return 0;
}
