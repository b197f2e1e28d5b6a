// The tcp plugin under the conformance suite of transports: as it is, and with four lanes that carry every write.

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport/plugin_world.h"
#include "tests/transport/transport_test.h"

extern "C" int32_t bps_transport_plugin_v1_tcp(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps::testing {

namespace {

std::unique_ptr<TransportWorld> World(std::map<std::string, std::string> config) {
  return MakePluginWorld(bps_transport_plugin_v1_tcp, std::move(config));
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(
    Tcp, TransportTest,
    ::testing::Values(TransportFactory{"one_lane",
                                       [] {
                                         return World({{"BYTEPS_TCP_LANES", "1"}});
                                       },
                                       true},
                      TransportFactory{"four_lanes",
                                       [] {
                                         return World({{"BYTEPS_TCP_LANES", "4"}, {"BYTEPS_TCP_LANE_BYTES", "0"}});
                                       }}),
    TransportFactory::Name);

}  // namespace byteps::testing
