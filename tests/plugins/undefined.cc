// Refers to a function that exists nowhere: must fail when it is loaded, not at the first task.
#include "tests/plugins/minimal_scheduler.h"
extern "C" void bps_tests_nobody_defines_this(void);
static void Sent(bps_scheduler*, int64_t, uint64_t) { bps_tests_nobody_defines_this(); }
static constexpr bps_scheduler_table kTable = {
    sizeof(bps_scheduler_table), minimal::Create,  minimal::Destroy, minimal::Enqueue, minimal::Next, Sent,
    minimal::Complete,           minimal::Withdraw};
MINIMAL_SCHEDULER(minimal::Info("undefined"), &kTable);
