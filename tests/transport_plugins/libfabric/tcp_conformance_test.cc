// The tcp plugin under the conformance suite of transports.

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport/plugin_world.h"
#include "tests/transport/transport_test.h"

extern "C" int32_t bps_transport_plugin_v1_tcp(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps::testing {

INSTANTIATE_TEST_SUITE_P(Tcp, TransportTest,
                         ::testing::Values(TransportFactory{
                             "tcp", [] { return MakePluginWorld(bps_transport_plugin_v1_tcp); }}),
                         TransportFactory::Name);

}  // namespace byteps::testing
