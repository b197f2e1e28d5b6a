// Its entry answers with an error, and says why.
#include "tests/plugins/minimal_scheduler.h"
int32_t bps_scheduler_plugin_v1(const bps_plugin_host* host, const bps_scheduler_plugin**) {
  return host->fail(nullptr, BPS_UNAVAILABLE, "this processor lacks what the test asks for");
}
