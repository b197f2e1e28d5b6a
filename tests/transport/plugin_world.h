// plugin_world.h - a TransportWorld of real endpoints, made by a plugin's entry function, in this process and real
// time.
//
//     extern "C" bps_transport_plugin_fn bps_transport_plugin_v1_tcp;
//     INSTANTIATE_TEST_SUITE_P(
//         Tcp, TransportTest,
//         testing::Values(TransportFactory{"tcp", [] { return MakePluginWorld(bps_transport_plugin_v1_tcp); }}),
//         TransportFactory::Name);
//
// An endpoint dies by being closed without a word. If the plugin's probe says that what it needs is not here, opening
// fails the test with the plugin's reason.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGIN_WORLD_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGIN_WORLD_H_

#include <map>
#include <memory>
#include <string>

#include "abi/transport.h"
#include "tests/transport/transport_world.h"

namespace byteps::testing {

// `config`: what host->config answers. Endpoints bind `local_host`. `says_why`: a lost peer must come with its reason.
std::unique_ptr<TransportWorld> MakePluginWorld(bps_transport_plugin_fn entry,
                                                std::map<std::string, std::string> config = {},
                                                const std::string& local_host = "127.0.0.1", bool says_why = true);

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGIN_WORLD_H_
