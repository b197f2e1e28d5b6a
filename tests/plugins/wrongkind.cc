// Takes itself for a transport.
#include "tests/plugins/minimal_scheduler.h"
MINIMAL_SCHEDULER(minimal::Info("wrongkind", 0, "transport"), &minimal::kTable);
