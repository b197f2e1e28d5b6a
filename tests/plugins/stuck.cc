// Does not come back from next.
#include <unistd.h>

#include "tests/plugins/minimal_scheduler.h"
static int32_t Next(bps_scheduler*, int64_t, const bps_budget*, size_t, uint64_t*) {
  while (true) ::pause();
}
static constexpr bps_scheduler_table Table() {
  bps_scheduler_table table = minimal::kTable;
  table.next = Next;
  return table;
}
static constexpr bps_scheduler_table kTable = Table();
MINIMAL_SCHEDULER(minimal::Info("stuck"), &kTable);
