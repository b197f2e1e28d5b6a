// Calls itself something else than its file.
#include "tests/plugins/minimal_scheduler.h"
MINIMAL_SCHEDULER(minimal::Info("somebody"), &minimal::kTable);
