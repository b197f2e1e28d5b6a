// Its struct_size says that the table ends before `complete`.
#include "tests/plugins/minimal_scheduler.h"
static constexpr bps_scheduler_table kTable = {offsetof(bps_scheduler_table, complete),
                                               minimal::Create,
                                               minimal::Destroy,
                                               minimal::Enqueue,
                                               minimal::Next,
                                               minimal::Sent,
                                               minimal::Complete,
                                               minimal::Withdraw};
MINIMAL_SCHEDULER(minimal::Info("shorttable"), &kTable);
