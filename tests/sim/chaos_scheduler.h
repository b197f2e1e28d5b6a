// chaos_scheduler.h - a scheduler plugin for simulated jobs: any task that fits, drawn at random, within a credit.
//
//     ChaosSchedulerConfig config{.seed = 7, .credit = 65536};
//     auto scheduler = Scheduler::Create(ChaosSchedulerPlugin(), BPS_DIRECTION_PUSH, &config, &log);
//
// No order is required of a scheduler, so nothing may depend on one: this one has none. `credit` is the bytes that may
// be under way (asked for, not yet sent); one task always may.
#ifndef BYTEPS_TESTS_SIM_CHAOS_SCHEDULER_H_
#define BYTEPS_TESTS_SIM_CHAOS_SCHEDULER_H_

#include <cstdint>
#include <string_view>

#include "abi/scheduler.h"
#include "core/plugin/plugin_host.h"

namespace byteps {

struct ChaosSchedulerConfig : PluginConfig {
  ChaosSchedulerConfig(uint64_t with_seed, uint64_t with_credit) : seed(with_seed), credit(with_credit) {}
  const char* PluginValue(std::string_view) const override { return nullptr; }
  uint64_t seed;
  uint64_t credit;  // 0: unlimited
};

// Instances must be given a ChaosSchedulerConfig.
const bps_scheduler_plugin& ChaosSchedulerPlugin();

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_CHAOS_SCHEDULER_H_
