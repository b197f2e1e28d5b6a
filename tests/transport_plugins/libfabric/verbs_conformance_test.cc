// The verbs plugin under the conformance suite of transports. It needs an RDMA device whose address is in
// BYTEPS_TEST_RDMA_ADDRESS; tools/soft_roce runs it where there is one.

#include <cstdlib>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport/plugin_world.h"
#include "tests/transport/transport_test.h"

extern "C" int32_t bps_transport_plugin_v1_verbs(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps::testing {
namespace {

std::unique_ptr<TransportWorld> MakeWorld() {
  const char* address = std::getenv("BYTEPS_TEST_RDMA_ADDRESS");
  if (address == nullptr) throw std::runtime_error("BYTEPS_TEST_RDMA_ADDRESS is not set");
  return MakePluginWorld(bps_transport_plugin_v1_verbs, {}, address);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Verbs, TransportTest, ::testing::Values(TransportFactory{"verbs", MakeWorld}),
                         TransportFactory::Name);

}  // namespace byteps::testing
