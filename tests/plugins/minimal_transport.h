// minimal_transport.h - a transport without a network: complete as a table, of no use as a transport.
#ifndef BYTEPS_TESTS_PLUGINS_MINIMAL_TRANSPORT_H_
#define BYTEPS_TESTS_PLUGINS_MINIMAL_TRANSPORT_H_

#include "abi/transport.h"

struct bps_transport {
  int nothing;
};

namespace minimal {

inline int32_t Probe(const void*, bps_failure*) { return BPS_OK; }
inline int32_t Open(const bps_transport_open_args*, bps_transport** transport, bps_failure*) {
  *transport = new bps_transport{};
  return BPS_OK;
}
inline void Close(bps_transport* transport) { delete transport; }
inline void Caps(bps_transport*, bps_transport_caps* caps) {
  caps->flags = 0;
  caps->immediate_bits = 24;
  caps->max_message = 16384;
  caps->receive_pool = 16;
  caps->tx_depth = 16;
  caps->key_size = 8;
  caps->max_transfer = 1 << 20;
  caps->alignment = 1;
  caps->provider = "none";
}
inline int32_t Address(bps_transport*, void*, size_t* size, bps_failure*) {
  *size = 0;
  return BPS_OK;
}
inline int32_t Connect(bps_transport*, const bps_connect_args*, bps_failure*) { return BPS_UNAVAILABLE; }
inline int32_t Disconnect(bps_transport*, bps_peer) { return BPS_UNAVAILABLE; }
inline int32_t Reg(bps_transport*, void*, size_t, bps_region**, bps_failure*) { return BPS_UNAVAILABLE; }
inline void Unreg(bps_transport*, bps_region*) {}
inline int32_t ExportKey(bps_transport*, bps_region*, bps_peer, void*) { return BPS_UNAVAILABLE; }
inline int32_t PostSend(bps_transport*, bps_peer, const void*, size_t, uint64_t) { return BPS_UNAVAILABLE; }
inline int32_t PostWrite(bps_transport*, bps_peer, const bps_local*, size_t, const bps_remote*, uint32_t, uint64_t) {
  return BPS_UNAVAILABLE;
}
inline size_t Poll(bps_transport*, bps_event*, size_t) { return 0; }
inline void Release(bps_transport*, uint64_t) {}

constexpr bps_transport_table Table(decltype(&Open) open = Open) {
  bps_transport_table table = {};
  table.struct_size = sizeof(table);
  table.open = open;
  table.close = Close;
  table.caps = Caps;
  table.address = Address;
  table.connect = Connect;
  table.disconnect = Disconnect;
  table.reg = Reg;
  table.unreg = Unreg;
  table.export_key = ExportKey;
  table.post_send = PostSend;
  table.post_write = PostWrite;
  table.poll = Poll;
  table.release = Release;
  return table;
}

constexpr bps_plugin_info Info(const char* name) {
  return {sizeof(bps_plugin_info), BPS_TRANSPORT_ABI_MINOR, "transport", name, "1", "for tests"};
}

}  // namespace minimal

extern "C" BPS_PLUGIN_EXPORT int32_t bps_transport_plugin_v1(const bps_plugin_host* host,
                                                             const bps_transport_plugin** plugin);

#endif  // BYTEPS_TESTS_PLUGINS_MINIMAL_TRANSPORT_H_
