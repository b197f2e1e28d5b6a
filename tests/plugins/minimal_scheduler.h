// minimal_scheduler.h - a scheduler that holds one task: what the misbehaving ones would be if they behaved.
#ifndef BYTEPS_TESTS_PLUGINS_MINIMAL_SCHEDULER_H_
#define BYTEPS_TESTS_PLUGINS_MINIMAL_SCHEDULER_H_

#include "abi/scheduler.h"

struct bps_scheduler {
  bps_task task;
  bool queued;
};

namespace minimal {

inline int32_t Create(const bps_scheduler_create_args*, bps_scheduler** scheduler, bps_failure*) {
  *scheduler = new bps_scheduler{};
  return BPS_OK;
}
inline void Destroy(bps_scheduler* scheduler) { delete scheduler; }
inline void Enqueue(bps_scheduler* scheduler, int64_t, const bps_task* task) {
  scheduler->task = *task;
  scheduler->queued = true;
}
inline int32_t Next(bps_scheduler* scheduler, int64_t, const bps_budget*, size_t, uint64_t* id) {
  if (!scheduler->queued) return 0;
  scheduler->queued = false;
  *id = scheduler->task.id;
  return 1;
}
inline void Sent(bps_scheduler*, int64_t, uint64_t) {}
inline void Complete(bps_scheduler*, int64_t, uint64_t, int32_t) {}
inline void Withdraw(bps_scheduler* scheduler, uint64_t) { scheduler->queued = false; }

inline constexpr bps_scheduler_table kTable = {
    sizeof(bps_scheduler_table), Create, Destroy, Enqueue, Next, Sent, Complete, Withdraw, nullptr, nullptr, nullptr};

constexpr bps_plugin_info Info(const char* name, int32_t minor = BPS_SCHEDULER_ABI_MINOR,
                               const char* kind = "scheduler") {
  return {sizeof(bps_plugin_info), minor, kind, name, "1", "for tests"};
}

}  // namespace minimal

extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host,
                                                             const bps_scheduler_plugin** plugin);

// A plugin that behaves, except for the given info and table.
#define MINIMAL_SCHEDULER(info, table)                                                           \
  static constexpr bps_scheduler_plugin kPlugin = {sizeof(bps_scheduler_plugin), info, table};   \
  int32_t bps_scheduler_plugin_v1(const bps_plugin_host*, const bps_scheduler_plugin** plugin) { \
    *plugin = &kPlugin;                                                                          \
    return BPS_OK;                                                                               \
  }                                                                                              \
  static_assert(true, "a semicolon follows")

#endif  // BYTEPS_TESTS_PLUGINS_MINIMAL_SCHEDULER_H_
