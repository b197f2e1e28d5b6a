#include "core/plugin/transport.h"

#include <gtest/gtest.h>

#include "core/plugin/plugin_host.h"

extern "C" int32_t bps_transport_plugin_v1_shm(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps {
namespace {

// Leaves something in PEER_DOWN where the text is since 1.1.
class Downer {
 public:
  explicit Downer(int32_t abi_minor) {
    const bps_transport_plugin* shm = nullptr;
    EXPECT_EQ(bps_transport_plugin_v1_shm(PluginHost(), &shm), BPS_OK);
    plugin_ = *shm;
    plugin_.info.abi_minor = abi_minor;
    table_ = *shm->table;
    table_.poll = [](bps_transport*, bps_event* events, size_t) -> size_t {
      events[0] = {};
      events[0].type = BPS_EVENT_PEER_DOWN;
      events[0].peer = 1;
      events[0].code = BPS_UNAVAILABLE;
      events[0].data = events;
      events[0].size = 99;
      return 1;
    };
    plugin_.table = &table_;
  }

  bps_event Poll() const {
    bps_transport_open_args args{};
    args.struct_size = sizeof args;
    absl::StatusOr<Transport> transport = Transport::Open(plugin_, args);
    EXPECT_TRUE(transport.ok()) << transport.status();
    bps_event event{};
    EXPECT_EQ(transport->Poll(&event, 1), 1u);
    return event;
  }

 private:
  bps_transport_table table_{};
  bps_transport_plugin plugin_{};
};

TEST(TransportTest, WhatPluginsOfTheFirstVersionLeaveInPeerDownIsNotRead) {
  EXPECT_EQ(Downer(0).Poll().size, 0u);
  EXPECT_EQ(Downer(1).Poll().size, 99u);
}

}  // namespace
}  // namespace byteps
