// Its descriptor's struct_size leaves no room for the table.
#include "tests/plugins/minimal_scheduler.h"
static constexpr bps_scheduler_plugin kShort = {offsetof(bps_scheduler_plugin, table), minimal::Info("shortdescriptor"),
                                                nullptr};
int32_t bps_scheduler_plugin_v1(const bps_plugin_host*, const bps_scheduler_plugin** plugin) {
  *plugin = &kShort;
  return BPS_OK;
}
