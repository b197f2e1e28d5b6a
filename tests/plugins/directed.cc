// Tells for which direction each of its schedulers was made, and how many peers it has.
#include <atomic>
#include <string>

#include "tests/plugins/minimal_scheduler.h"
static std::atomic<const bps_plugin_host*> host;
static std::atomic<void*> log_to;
static int32_t Create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure* failure) {
  const char* told = args->direction == BPS_DIRECTION_LOCAL    ? "made for what is done within a host"
                     : args->direction == BPS_DIRECTION_PUSH   ? "made for pushes"
                     : args->direction == BPS_DIRECTION_RESULT ? "made for results"
                                                               : "made for what it does not know";
  log_to = args->log;
  host.load()->log(args->log, BPS_LOG_INFO, __FILE__, __LINE__, told);
  return minimal::Create(args, scheduler, failure);
}
static void Peers(bps_scheduler*, const uint32_t*, size_t count) {
  const std::string told = "has " + std::to_string(count) + " peers";
  host.load()->log(log_to, BPS_LOG_INFO, __FILE__, __LINE__, told.c_str());
}
static constexpr bps_scheduler_table Table() {
  bps_scheduler_table table = minimal::kTable;
  table.create = Create;
  table.peers = Peers;
  return table;
}
static constexpr bps_scheduler_table kTable = Table();
static constexpr bps_scheduler_plugin kPlugin = {sizeof(bps_scheduler_plugin), minimal::Info("directed"), &kTable};
int32_t bps_scheduler_plugin_v1(const bps_plugin_host* table, const bps_scheduler_plugin** plugin) {
  host = table;
  *plugin = &kPlugin;
  return BPS_OK;
}
