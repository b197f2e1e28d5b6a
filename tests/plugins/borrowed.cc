// Exports nothing, but links `minimal`: looking its entry up finds the other's.
#include "tests/plugins/minimal_scheduler.h"
[[gnu::used]] static bps_scheduler_plugin_fn const kOfAnother = bps_scheduler_plugin_v1;
