// plugin_under_test.h - the plugin that bps_conformance was given, loaded and checked as the library would.
//
//     absl::StatusOr<PluginUnderTest> plugin = LoadPlugin("transport", "./libbyteps_transport_mine.so");
//     SetPluginUnderTest(*plugin);           // before InitGoogleTest: the suites are made from it
//
// Threads: one at a time. Ownership: plugins are never unloaded.
#ifndef BYTEPS_TOOLS_CONFORMANCE_PLUGIN_UNDER_TEST_H_
#define BYTEPS_TOOLS_CONFORMANCE_PLUGIN_UNDER_TEST_H_

#include <string>

#include "abi/scheduler.h"
#include "abi/transport.h"
#include "absl/status/statusor.h"

namespace byteps {

struct PluginUnderTest {
  bps_transport_plugin_fn transport = nullptr;  // one of the two
  bps_scheduler_plugin_fn scheduler = nullptr;
  std::string path;
  std::string kind, name, version, description;
  int32_t minor = 0;  // of the contract it was compiled with
};

// Errors say what is wrong with the file, the path included; of a transport also what it misses on this machine.
absl::StatusOr<PluginUnderTest> LoadPlugin(const std::string& kind, const std::string& path);

void SetPluginUnderTest(const PluginUnderTest& plugin);
const PluginUnderTest& GetPluginUnderTest();

}  // namespace byteps

#endif  // BYTEPS_TOOLS_CONFORMANCE_PLUGIN_UNDER_TEST_H_
