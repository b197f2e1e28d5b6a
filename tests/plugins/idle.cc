// A transport that opens, and carries nothing.
#include "tests/plugins/minimal_transport.h"
static constexpr bps_transport_table kTable = minimal::Table();
static constexpr bps_transport_plugin kPlugin = {sizeof(bps_transport_plugin), minimal::Info("idle"), minimal::Probe,
                                                 &kTable};
int32_t bps_transport_plugin_v1(const bps_plugin_host*, const bps_transport_plugin** plugin) {
  *plugin = &kPlugin;
  return BPS_OK;
}
