// Throws from its entry.
#include <stdexcept>

#include "tests/plugins/minimal_scheduler.h"
int32_t bps_scheduler_plugin_v1(const bps_plugin_host*, const bps_scheduler_plugin**) {
  throw std::runtime_error("no mood today");
}
