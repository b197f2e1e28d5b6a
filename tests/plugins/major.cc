// Of another major version.
#include "abi/plugin.h"
extern "C" BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v2(const bps_plugin_host*, const void**);
int32_t bps_scheduler_plugin_v2(const bps_plugin_host*, const void**) { return BPS_OK; }
