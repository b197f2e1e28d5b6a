// A transport whose hardware is not here.
#include <atomic>

#include "tests/plugins/minimal_transport.h"
static std::atomic<const bps_plugin_host*> host;
static int32_t Probe(const void* config, bps_failure* failure) {
  // What it may ask of the configuration, it gets.
  if (host.load()->config(config, "BYTEPS_INLINE_BYTES") == nullptr) return BPS_INTERNAL;
  return host.load()->fail(failure, BPS_NOT_FOUND, "no device named mlx5_7");
}
static constexpr bps_transport_table kTable = minimal::Table();
static constexpr bps_transport_plugin kPlugin = {sizeof(bps_transport_plugin), minimal::Info("failsprobe"), Probe,
                                                 &kTable};
int32_t bps_transport_plugin_v1(const bps_plugin_host* table, const bps_transport_plugin** plugin) {
  host = table;
  *plugin = &kPlugin;
  return BPS_OK;
}
