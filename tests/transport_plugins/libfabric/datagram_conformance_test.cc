// What is written for EFA, under the conformance suite of transports, on reliable datagrams that every machine has: as
// they are, and as bad as EFA's documents allow (adverse_wire.h). Writes go as messages; or, in adverse_device, as
// those of a device, imitated (device_wire.h); or, in adverse_remote, as the provider's own, through the calls of
// libfabric that a device's go through. Of the last only what ends in peace is run (see BUILD): on TCP they cannot be
// stopped, and ofi_rxm of libfabric 1.17 crashes when it is closed over one.

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport/plugin_world.h"
#include "tests/transport/transport_test.h"

extern "C" {
int32_t bps_transport_plugin_v1_datagrams(const bps_plugin_host* host, const bps_transport_plugin** plugin);
int32_t bps_transport_plugin_v1_adverse(const bps_plugin_host* host, const bps_transport_plugin** plugin);
int32_t bps_transport_plugin_v1_adverse_device(const bps_plugin_host* host, const bps_transport_plugin** plugin);
int32_t bps_transport_plugin_v1_adverse_remote(const bps_plugin_host* host, const bps_transport_plugin** plugin);
}

namespace byteps::testing {
namespace {

template <bps_transport_plugin_fn entry>
std::unique_ptr<TransportWorld> MakeWorld() {
  // A dead peer is told by the provider, or found out by patience.
  return MakePluginWorld(entry, {{"BYTEPS_PEER_TIMEOUT", "8"}});
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(
    Datagram, TransportTest,
    ::testing::Values(TransportFactory{"datagrams", MakeWorld<bps_transport_plugin_v1_datagrams>},
                      TransportFactory{"adverse", MakeWorld<bps_transport_plugin_v1_adverse>},
                      TransportFactory{"adverse_device", MakeWorld<bps_transport_plugin_v1_adverse_device>},
                      TransportFactory{"adverse_remote", MakeWorld<bps_transport_plugin_v1_adverse_remote>}),
    TransportFactory::Name);

}  // namespace byteps::testing
