#include "core/transports/transport_choice.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "core/config/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plugins/minimal_transport.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const bps_plugin_host* g_host = nullptr;  // the same for all, for the life of the process

int32_t NoDevice(const void*, bps_failure* failure) {
  return g_host->fail(failure, BPS_UNAVAILABLE, "this host has no such device");
}

// A device that has nothing to do with the loopback address.
int32_t OpenElsewhere(const bps_transport_open_args* args, bps_transport** transport, bps_failure* failure) {
  if (std::string(args->local_host) == "127.0.0.1") {
    return g_host->fail(failure, BPS_UNAVAILABLE, "127.0.0.1 is no address of a device");
  }
  return minimal::Open(args, transport, failure);
}

constexpr bps_transport_table kTable = minimal::Table();
constexpr bps_transport_table kElsewhere = minimal::Table(OpenElsewhere);
constexpr bps_transport_plugin kTcp = {sizeof(kTcp), minimal::Info("tcp"), minimal::Probe, &kTable};
constexpr bps_transport_plugin kVerbs = {sizeof(kVerbs), minimal::Info("verbs"), minimal::Probe, &kElsewhere};
constexpr bps_transport_plugin kEfa = {sizeof(kEfa), minimal::Info("efa"), minimal::Probe, &kTable};
constexpr bps_transport_plugin kEfaAbsent = {sizeof(kEfaAbsent), minimal::Info("efa"), NoDevice, &kTable};

template <const bps_transport_plugin* kPlugin>
int32_t Entry(const bps_plugin_host* host, const bps_transport_plugin** plugin) {
  g_host = host;
  *plugin = kPlugin;
  return BPS_OK;
}

class TransportChoiceTest : public testing::Test {
 protected:
  // What is chosen at `host` with these variables, or the error.
  std::string Choose(const Environment& environment, const std::vector<bps_transport_plugin_fn>& plugins,
                     const std::string& host = "10.0.0.1") {
    lines_.clear();
    LogOptions options;
    options.level = LogLevel::kInfo;
    options.sink = [](void* user, int32_t, const char*, int32_t, const char* message) {
      static_cast<std::vector<std::string>*>(user)->push_back(message);
    };
    options.user = &lines_;
    const Logger log(options);
    const absl::StatusOr<Config> config = Config::Make(environment);
    if (!config.ok()) return std::string(config.status().message());
    PluginRegistry registry(*config, log);
    for (const bps_transport_plugin_fn plugin : plugins) registry.RegisterBuiltin(plugin);
    const absl::StatusOr<std::string> choice = ChooseTransport(&registry, *config, log, host);
    return choice.ok() ? *choice : "error: " + std::string(choice.status().message());
  }

  std::vector<std::string> lines_;
};

TEST_F(TransportChoiceTest, AutoTakesTheBestThereIsAndSaysWhyNotTheOthers) {
  EXPECT_EQ(Choose({}, {Entry<&kTcp>, Entry<&kVerbs>, Entry<&kEfa>}), "efa");
  EXPECT_THAT(lines_, ElementsAre("transport efa, chosen by BYTEPS_TRANSPORT=auto: the best there is"));
  EXPECT_EQ(Choose({{"BYTEPS_TRANSPORT", "AUTO"}}, {Entry<&kTcp>, Entry<&kVerbs>, Entry<&kEfaAbsent>}), "verbs");
  EXPECT_THAT(lines_, ElementsAre("transport verbs, chosen by BYTEPS_TRANSPORT=auto: not efa (this host has no such "
                                  "device)"));
  EXPECT_EQ(Choose({}, {Entry<&kTcp>, Entry<&kEfaAbsent>}), "tcp");
  EXPECT_THAT(lines_, ElementsAre("transport tcp, chosen by BYTEPS_TRANSPORT=auto: not efa (this host has no such "
                                  "device); not verbs (it is not installed)"));
}

TEST_F(TransportChoiceTest, ADeviceThatDoesNotServeTheOwnAddressIsNotTaken) {
  EXPECT_EQ(Choose({}, {Entry<&kTcp>, Entry<&kVerbs>}, "127.0.0.1"), "tcp");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("127.0.0.1 is no address of a device"));
}

TEST_F(TransportChoiceTest, AutoWithNothingNamesEverything) {
  EXPECT_THAT(Choose({}, {Entry<&kEfaAbsent>}),
              AllOf(HasSubstr("error: no transport can be used here"), HasSubstr("efa (this host has no such device)"),
                    HasSubstr("tcp (it is not installed)"), HasSubstr("BYTEPS_TRANSPORT")));
}

TEST_F(TransportChoiceTest, WhatIsNotInstalledIsToldWithTheFoldersInWhichItWasSought) {
  const Environment folders = {{"BYTEPS_PLUGIN_PATH", "/nowhere/one:/nowhere/two"}};
  const auto told = AllOf(HasSubstr("it is not installed"), HasSubstr("sought in /nowhere/one, /nowhere/two, "),
                          HasSubstr("BYTEPS_PLUGIN_PATH"));
  EXPECT_THAT(Choose(folders, {Entry<&kEfaAbsent>}), told);
  EXPECT_THAT(Choose(folders, {}), told);
  Environment original = folders;
  original["DMLC_ENABLE_RDMA"] = "1";
  EXPECT_THAT(Choose(original, {Entry<&kTcp>}), told);
  // Who is there is not sought elsewhere.
  original["DMLC_ENABLE_RDMA"] = "fabric";
  EXPECT_EQ(Choose(original, {Entry<&kTcp>}), "tcp");
  EXPECT_THAT(lines_, ElementsAre(Not(HasSubstr("sought"))));
}

TEST_F(TransportChoiceTest, ANameIsTakenAtItsWord) {
  EXPECT_EQ(Choose({{"BYTEPS_TRANSPORT", "pigeon"}}, {Entry<&kTcp>}), "pigeon");
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(TransportChoiceTest, WhatIsNamedIsKnownWhetherItIsUsedOrNot) {
  const auto named = [](const Environment& environment) {
    const absl::StatusOr<std::string> name = NamedTransport(*Config::Make(environment));
    return name.ok() ? *name : "error: " + std::string(name.status().message());
  };
  EXPECT_EQ(named({}), "");
  EXPECT_EQ(named({{"BYTEPS_TRANSPORT", "Auto"}, {"DMLC_ENABLE_RDMA", "1"}}), "");
  EXPECT_EQ(named({{"BYTEPS_TRANSPORT", "shm"}, {"DMLC_ENABLE_RDMA", "ucx"}}), "shm");
  EXPECT_EQ(named({{"DMLC_ENABLE_RDMA", "zmq"}}), "tcp");
  EXPECT_EQ(named({{"DMLC_ENABLE_RDMA", "ibverbs"}}), "verbs");
  EXPECT_EQ(named({{"DMLC_ENABLE_RDMA", "fabric"}}), "");
  EXPECT_THAT(named({{"DMLC_ENABLE_RDMA", "multivan"}}), HasSubstr("error: DMLC_ENABLE_RDMA=multivan"));
}

TEST_F(TransportChoiceTest, TheVariableOfTheOriginalKeepsItsMeaning) {
  const std::vector<bps_transport_plugin_fn> all = {Entry<&kTcp>, Entry<&kVerbs>, Entry<&kEfa>};
  for (const char* value : {"0", "zmq", "ZMQ"}) {
    EXPECT_EQ(Choose({{"DMLC_ENABLE_RDMA", value}}, all), "tcp") << value;
    ASSERT_EQ(lines_.size(), 1u);
    const std::string asked = absl::AsciiStrToLower(value);
    EXPECT_THAT(lines_[0], AllOf(HasSubstr("DMLC_ENABLE_RDMA=" + asked), HasSubstr("BYTEPS_TRANSPORT=tcp")));
  }
  for (const char* value : {"1", "ibverbs"}) EXPECT_EQ(Choose({{"DMLC_ENABLE_RDMA", value}}, all), "verbs") << value;
  EXPECT_EQ(Choose({{"DMLC_ENABLE_RDMA", "fabric"}}, all), "efa");
  EXPECT_EQ(Choose({{"DMLC_ENABLE_RDMA", "fabric"}}, {Entry<&kTcp>, Entry<&kVerbs>, Entry<&kEfaAbsent>}), "tcp");
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("DMLC_ENABLE_RDMA=fabric"), HasSubstr("not efa"))));
  EXPECT_THAT(Choose({{"DMLC_ENABLE_RDMA", "1"}}, {Entry<&kTcp>}),
              AllOf(HasSubstr("DMLC_ENABLE_RDMA=1 asks for the transport verbs, which cannot be used here: it is not "
                              "installed"),
                    HasSubstr("BYTEPS_TRANSPORT=auto")));
  for (const char* value : {"ucx", "multivan"}) {
    EXPECT_THAT(Choose({{"DMLC_ENABLE_RDMA", value}}, all),
                AllOf(HasSubstr(std::string("DMLC_ENABLE_RDMA=") + value), HasSubstr("BYTEPS_TRANSPORT=verbs"),
                      HasSubstr("tcp"), HasSubstr("auto")));
  }
}

TEST_F(TransportChoiceTest, TheNewVariableWins) {
  EXPECT_EQ(Choose({{"DMLC_ENABLE_RDMA", "ucx"}, {"BYTEPS_TRANSPORT", "tcp"}}, {Entry<&kTcp>}), "tcp");
  EXPECT_THAT(lines_, ElementsAre("BYTEPS_TRANSPORT=tcp wins over DMLC_ENABLE_RDMA=ucx"));
  EXPECT_EQ(Choose({{"DMLC_ENABLE_RDMA", "0"}, {"BYTEPS_TRANSPORT", "auto"}}, {Entry<&kTcp>, Entry<&kEfa>}), "efa");
}

}  // namespace
}  // namespace byteps
