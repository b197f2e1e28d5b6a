// Of a minor version that never was.
#include "tests/plugins/minimal_scheduler.h"
MINIMAL_SCHEDULER(minimal::Info("minor", -1), &minimal::kTable);
