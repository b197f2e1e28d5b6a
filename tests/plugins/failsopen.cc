// A transport that cannot be opened.
#include <atomic>

#include "tests/plugins/minimal_transport.h"
static std::atomic<const bps_plugin_host*> host;
static int32_t Open(const bps_transport_open_args* args, bps_transport**, bps_failure* failure) {
  host.load()->log(args->log, BPS_LOG_WARNING, __FILE__, __LINE__, "opening will fail");
  return host.load()->fail(failure, BPS_UNAVAILABLE, "the network is on strike");
}
static constexpr bps_transport_table kTable = minimal::Table(Open);
static constexpr bps_transport_plugin kPlugin = {sizeof(bps_transport_plugin), minimal::Info("failsopen"),
                                                 minimal::Probe, &kTable};
int32_t bps_transport_plugin_v1(const bps_plugin_host* table, const bps_transport_plugin** plugin) {
  host = table;
  *plugin = &kPlugin;
  return BPS_OK;
}
