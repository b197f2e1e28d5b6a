// Behaves.
#include "tests/plugins/minimal_scheduler.h"
MINIMAL_SCHEDULER(minimal::Info("minimal"), &minimal::kTable);
