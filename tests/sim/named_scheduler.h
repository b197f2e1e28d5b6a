// named_scheduler.h - the schedulers of the tree, for simulated jobs.
//
//     NamedSchedulerConfig config("4");      // BYTEPS_SCHEDULING_CREDIT
//     auto scheduler = Scheduler::Create(NamedSchedulerPlugin("credit"), BPS_DIRECTION_PUSH, &config, &log);
#ifndef BYTEPS_TESTS_SIM_NAMED_SCHEDULER_H_
#define BYTEPS_TESTS_SIM_NAMED_SCHEDULER_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "abi/scheduler.h"
#include "core/plugin/plugin_host.h"

namespace byteps {

struct NamedSchedulerConfig : PluginConfig {
  explicit NamedSchedulerConfig(std::optional<std::string> with_credit) : credit(std::move(with_credit)) {}
  const char* PluginValue(std::string_view name) const override {
    return name == "BYTEPS_SCHEDULING_CREDIT" && credit ? credit->c_str() : nullptr;
  }
  std::optional<std::string> credit;
};

// Throws std::invalid_argument if there is no such scheduler.
const bps_scheduler_plugin& NamedSchedulerPlugin(const std::string& name);

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_NAMED_SCHEDULER_H_
