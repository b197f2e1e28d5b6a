// The shm plugin under the conformance suite of transports: where the memory of other processes may be read, and where
// it may not.

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport/plugin_world.h"
#include "tests/transport/transport_test.h"

extern "C" int32_t bps_transport_plugin_v1_shm(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps::testing {

INSTANTIATE_TEST_SUITE_P(
    Shm, TransportTest,
    ::testing::Values(TransportFactory{"shm", [] { return MakePluginWorld(bps_transport_plugin_v1_shm); }},
                      TransportFactory{
                          "shm_by_chunks",
                          [] {
                            return MakePluginWorld(bps_transport_plugin_v1_shm, {{"BYTEPS_SHM_PROCESS_VM", "0"}});
                          }}),
    TransportFactory::Name);

}  // namespace byteps::testing
