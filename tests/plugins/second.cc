// Behaves too: with `minimal`, two plugins of one kind in one process. Of a newer minor, which is no fault.
#include "tests/plugins/minimal_scheduler.h"
MINIMAL_SCHEDULER(minimal::Info("second", BPS_SCHEDULER_ABI_MINOR + 7), &minimal::kTable);
