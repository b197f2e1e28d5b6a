// What the plugins for RDMA hardware say where there is none.

#include <cstdlib>
#include <string>

#include "abi/byteps.h"
#include "abi/transport.h"
#include "gtest/gtest.h"
#include "transport_plugins/common/host.h"
#include "transport_plugins/libfabric/provider_info.h"
#include "transport_plugins/libfabric/provider_table.h"
#include "transport_plugins/libfabric/rdma_device.h"

extern "C" {
int32_t bps_transport_plugin_v1_efa(const bps_plugin_host* host, const bps_transport_plugin** plugin);
int32_t bps_transport_plugin_v1_verbs(const bps_plugin_host* host, const bps_transport_plugin** plugin);
}

namespace byteps::fabric {
namespace {

int32_t Fail(bps_failure* failure, int32_t code, const char* reason) {
  *reinterpret_cast<std::string*>(failure) = reason;
  return code;
}
void Log(void*, int32_t, const char*, int32_t, const char*) {}
const char* Config(const void*, const char*) { return nullptr; }
constexpr bps_plugin_host kHost = {sizeof(bps_plugin_host), Log, Fail, Config};

const bps_transport_plugin& Load(bps_transport_plugin_fn entry) {
  const bps_transport_plugin* plugin = nullptr;
  if (entry(&kHost, &plugin) != BPS_OK) std::abort();
  return *plugin;
}

TEST(Probe, EachPluginHasItsName) {
  EXPECT_STREQ(Load(bps_transport_plugin_v1_efa).info.name, "efa");
  EXPECT_STREQ(Load(bps_transport_plugin_v1_verbs).info.name, "verbs");
}

TEST(Probe, WithoutADeviceItSaysSoInOneSentence) {
  if (!RdmaDevices().empty()) GTEST_SKIP() << "this machine has RDMA devices";
  struct Case {
    bps_transport_plugin_fn entry;
    const char* name;
  };
  for (const auto& [entry, name] :
       {Case{bps_transport_plugin_v1_efa, "EFA"}, Case{bps_transport_plugin_v1_verbs, "RDMA"}}) {
    std::string reason;
    EXPECT_EQ(Load(entry).probe(nullptr, reinterpret_cast<bps_failure*>(&reason)), BPS_UNAVAILABLE);
    EXPECT_EQ(reason, std::string("this host has no ") + name + " device (/sys/class/infiniband is empty)");
  }
}

// EFA's own device is not here, so another provider is asked with what EFA wants of the environment. libfabric reads it
// when it is first asked, and what the user has set stays.
TEST(Probe, TheEnvironmentIsMadeBeforeLibfabricIsAsked) {
  Provider provider = *FindProvider("datagrams");
  provider.environment = FindProvider("efa")->environment;
  ASSERT_EQ(unsetenv("FI_EFA_FORK_SAFE"), 0);
  ASSERT_EQ(setenv("FI_EFA_ENABLE_SHM_TRANSFER", "1", 1), 0);
  std::string reason;
  ASSERT_TRUE(ProbeProvider(provider, transports::Host(&kHost, nullptr, nullptr), &reason)) << reason;
  const char* const fork_safe = std::getenv("FI_EFA_FORK_SAFE");
  ASSERT_NE(fork_safe, nullptr) << "trainers fork";
  EXPECT_STREQ(fork_safe, "1");
  EXPECT_STREQ(std::getenv("FI_EFA_ENABLE_SHM_TRANSFER"), "1");
}

// Who opens without asking first gets an error, too, and nothing else.
TEST(Probe, OpeningWithoutADeviceFailsWithAReason) {
  if (!RdmaDevices().empty()) GTEST_SKIP() << "this machine has RDMA devices";
  for (bps_transport_plugin_fn entry : {bps_transport_plugin_v1_efa, bps_transport_plugin_v1_verbs}) {
    std::string reason;
    bps_transport_open_args args{};
    args.struct_size = sizeof args;
    args.local_host = "127.0.0.1";
    bps_transport* transport = nullptr;
    EXPECT_EQ(Load(entry).table->open(&args, &transport, reinterpret_cast<bps_failure*>(&reason)), BPS_UNAVAILABLE);
    EXPECT_EQ(transport, nullptr);
    EXPECT_FALSE(reason.empty());
  }
}

}  // namespace
}  // namespace byteps::fabric
