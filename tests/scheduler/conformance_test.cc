#include "tests/scheduler/conformance.h"

extern "C" {
int32_t bps_scheduler_plugin_v1_credit(const bps_plugin_host*, const bps_scheduler_plugin**);
int32_t bps_scheduler_plugin_v1_fifo(const bps_plugin_host*, const bps_scheduler_plugin**);
int32_t bps_scheduler_plugin_v1_priority(const bps_plugin_host*, const bps_scheduler_plugin**);
}

namespace byteps {
namespace {

// Every scheduler of the tree: one line each (and its ..._builtin in BUILD).
INSTANTIATE_TEST_SUITE_P(All, SchedulerConformance,
                         testing::Values(SchedulerUnderTest{"fifo", bps_scheduler_plugin_v1_fifo},
                                         SchedulerUnderTest{"priority", bps_scheduler_plugin_v1_priority},
                                         SchedulerUnderTest{"credit", bps_scheduler_plugin_v1_credit, true}),
                         SchedulerName);

}  // namespace
}  // namespace byteps
