// scheduler.h - owns one instance of a scheduler plugin, and holds it to its contract.
//
//     absl::StatusOr<Scheduler> scheduler = Scheduler::Create(plugin, BPS_DIRECTION_PUSH, &config, &log);
//     scheduler->Enqueue(now, task);
//     absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler->Next(now, budgets);
//     scheduler->Sent(now, (*next)->id);
//     scheduler->Complete(now, (*next)->id, BPS_OK);
//
// The verbs are those of abi/scheduler.h. This class remembers every task, so that a plugin which answers with a task
// it does not have, with the same one twice, with one that does not fit or whose time has not come is found at once:
// Next then returns BPS_INTERNAL with the plugin's name, and goes on doing so. The same if the plugin throws. A plugin
// that does not return is for Watch to tell.
//
// Threads:   one at a time.
// Ownership: owns the instance; the plugin's descriptor, the configuration and the logger must outlive it.
#ifndef BYTEPS_CORE_PLUGIN_SCHEDULER_H_
#define BYTEPS_CORE_PLUGIN_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "abi/scheduler.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/plugin/plugin_calls.h"
#include "core/plugin/plugin_host.h"
#include "core/plugin/scheduled_tasks.h"

namespace byteps {

class Scheduler {
 public:
  // `direction`: BPS_DIRECTION_*. `config` and `log` may be nullptr.
  static absl::StatusOr<Scheduler> Create(const bps_scheduler_plugin& plugin, int32_t direction,
                                          const PluginConfig* config, const Logger* log);

  Scheduler(Scheduler&&) = default;
  Scheduler& operator=(Scheduler&&) = default;

  const std::string& name() const { return name_; }

  // From now on `calls`, which outlives this, tells which function of the plugin runs.
  void Watch(PluginCalls* calls) { calls_ = calls; }

  // The peers there are from now on.
  void Peers(std::span<const uint32_t> peers);

  // `task.id` must be new; struct_size is filled in.
  void Enqueue(Time now, const bps_task& task);

  struct Started {
    uint64_t id;
    uint32_t peer;
  };
  // The task to start now, out of the queue; nothing if none may go.
  absl::StatusOr<std::optional<Started>> Next(Time now, std::span<const bps_budget> budgets);

  // Its bytes have left.
  void Sent(Time now, uint64_t id);

  // Its result is home or it failed (`outcome`: a code of byteps.h); it is forgotten.
  void Complete(Time now, uint64_t id, int32_t outcome);

  // Takes a queued task back and forgets it. False if it is not queued (any more): then only Complete ends it.
  bool Withdraw(uint64_t id);

  bool Queued(uint64_t id) const;
  size_t queued() const { return queued_; }

  // What the plugin says of itself; without its word, what is known here.
  bps_scheduler_stats Stats();

  // When Next may have something although nothing else happens; kNever: not by time alone.
  Time WakeAt(Time now);

  // What the link carries, in bytes per second, as far as the plugin has found out; 0: not known, or it does not care.
  uint64_t Rate();
  // The least that all workers have told.
  void Agreed(Time now, uint64_t rate);

  // OK until the plugin breaks its contract.
  const absl::Status& status() const { return status_; }

 private:
  struct Destroyer {
    const bps_scheduler_table* table;
    void operator()(bps_scheduler* scheduler) const;
  };
  using State = ScheduledTasks::State;
  using Entry = ScheduledTasks::Entry;

  Scheduler(std::string name, const bps_scheduler_table* table, bps_scheduler* handle);

  // Runs one call of the plugin, unless it has failed before; an exception makes it fail.
  template <typename Call>
  void Run(const char* verb, Call&& call);
  absl::Status Fail(std::string_view what);
  // Is this answer of next() allowed? `entry`: what is known of it; nullptr: nothing.
  static absl::Status Check(Time now, uint64_t id, const Entry* entry, std::span<const bps_budget> budgets);

  std::string name_;
  std::unique_ptr<const std::string> title_;  // `scheduler "x"`; stays where it is when this moves
  PluginCalls* calls_ = nullptr;
  const bps_scheduler_table* table_;
  std::unique_ptr<bps_scheduler, Destroyer> handle_;
  ScheduledTasks tasks_;
  size_t queued_ = 0;
  absl::Status status_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_SCHEDULER_H_
