// The conformance suites of tests/transport and tests/scheduler, of the plugin under test alone. Nothing is registered
// for the kind that it is not of.

#include <cctype>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/scheduler/conformance.h"
#include "tests/transport/plugin_world.h"
#include "tests/transport/transport_test.h"
#include "tools/conformance/plugin_under_test.h"

extern char** environ;

namespace byteps {
namespace {

// What host->config answers: the BYTEPS_ variables of the environment.
std::map<std::string, std::string> Configuration() {
  std::map<std::string, std::string> values;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    if (text.rfind("BYTEPS_", 0) == 0 && equals != std::string::npos)
      values[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return values;
}

// Names of tests are letters, digits and underscores.
std::string TestName() {
  std::string name = GetPluginUnderTest().name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

std::vector<testing::TransportFactory> Transports() {
  const bps_transport_plugin_fn entry = GetPluginUnderTest().transport;
  if (entry == nullptr) return {};
  const char* host = std::getenv("DMLC_NODE_HOST");
  const std::string local_host = host == nullptr ? "127.0.0.1" : host;
  return {{TestName(), [entry, local_host] {
             return testing::MakePluginWorld(entry, Configuration(), local_host, /*says_why=*/false);
           }}};
}

std::vector<SchedulerUnderTest> Schedulers() {
  const bps_scheduler_plugin_fn entry = GetPluginUnderTest().scheduler;
  if (entry == nullptr) return {};
  static const std::string name = GetPluginUnderTest().name;
  return {{name.c_str(), entry}};
}

std::string SchedulerTestName(const ::testing::TestParamInfo<SchedulerUnderTest>&) { return TestName(); }

INSTANTIATE_TEST_SUITE_P(Plugin, SchedulerConformance, ::testing::ValuesIn(Schedulers()), SchedulerTestName);

}  // namespace

namespace testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Plugin, TransportTest, ::testing::ValuesIn(Transports()), TransportFactory::Name);

}  // namespace
}  // namespace testing
}  // namespace byteps
