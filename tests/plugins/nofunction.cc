// `next` and `withdraw`, both required, are NULL.
#include "tests/plugins/minimal_scheduler.h"
static constexpr bps_scheduler_table kTable = {
    sizeof(bps_scheduler_table), minimal::Create, minimal::Destroy, minimal::Enqueue, nullptr, minimal::Sent,
    minimal::Complete,           nullptr};
MINIMAL_SCHEDULER(minimal::Info("nofunction"), &kTable);
