#include "core/plugin/transport.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

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

// The shm transport, but for what its table is changed to.
class Wrong {
 public:
  explicit Wrong(const std::function<void(bps_transport_table*)>& change) {
    const bps_transport_plugin* shm = nullptr;
    EXPECT_EQ(bps_transport_plugin_v1_shm(PluginHost(), &shm), BPS_OK);
    plugin_ = *shm;
    table_ = *shm->table;
    table_.connect = [](bps_transport*, const bps_connect_args*, bps_failure*) -> int32_t { return BPS_OK; };
    table_.disconnect = [](bps_transport*, bps_peer) -> int32_t { return BPS_OK; };
    table_.post_write = [](bps_transport*, bps_peer, const bps_local*, size_t, const bps_remote*, uint32_t,
                           uint64_t) -> int32_t { return BPS_OK; };
    table_.poll = [](bps_transport*, bps_event*, size_t) -> size_t { return 0; };
    change(&table_);
    plugin_.table = &table_;
  }

  absl::StatusOr<Transport> Open() const {
    bps_transport_open_args args{};
    args.struct_size = sizeof args;
    return Transport::Open(plugin_, args);
  }
  // Connected to the peers 1 and 2, with a write of user 5 under way.
  Transport Connected() const {
    absl::StatusOr<Transport> transport = Open();
    EXPECT_TRUE(transport.ok()) << transport.status();
    for (const bps_peer peer : {1, 2}) {
      bps_connect_args args{};
      args.struct_size = sizeof args;
      args.peer = peer;
      EXPECT_EQ(transport->Connect(args), absl::OkStatus());
    }
    EXPECT_EQ(transport->PostWrite(1, {}, 8, {}, 0, 5), BPS_OK);
    return *std::move(transport);
  }

 private:
  bps_transport_table table_{};
  bps_transport_plugin plugin_{};
};

// Both peers go down with a cause that names the plugin and says this; then nothing is posted any more, and a peer
// that is disconnected is gone.
void ExpectGivenUp(Transport transport, const std::string& what) {
  std::array<bps_event, 4> events;
  std::set<bps_peer> down;
  size_t count = transport.Poll(events.data(), events.size());
  for (size_t i = 0; i < count; ++i) {
    if (events[i].type != BPS_EVENT_PEER_DOWN) continue;
    down.insert(events[i].peer);
    EXPECT_EQ(events[i].code, BPS_INTERNAL);
    const std::string why(static_cast<const char*>(events[i].data), events[i].size);
    EXPECT_NE(why.find("was given up: transport \"shm\" " + what), std::string::npos) << why;
  }
  EXPECT_EQ(down, (std::set<bps_peer>{1, 2}));
  EXPECT_EQ(transport.Poll(events.data(), events.size()), 0u) << "said twice";
  EXPECT_EQ(transport.PostWrite(1, {}, 8, {}, 0, 6), BPS_UNAVAILABLE);
  EXPECT_EQ(transport.Disconnect(2), BPS_OK);
  ASSERT_EQ(transport.Poll(events.data(), events.size()), 1u);
  EXPECT_EQ(events[0].type, static_cast<uint32_t>(BPS_EVENT_DISCONNECTED));
  EXPECT_EQ(events[0].peer, 2u);
}

template <uint32_t type, uint64_t user>
size_t Report(bps_transport*, bps_event* events, size_t) {
  events[0] = {};
  events[0].type = type;
  events[0].user = user;
  return 1;
}

TEST(TransportTest, APluginThatMakesNoSenseIsNamed) {
  const auto poll = [](decltype(bps_transport_table::poll) function) {
    return Wrong([function](bps_transport_table* table) { table->poll = function; });
  };
  ExpectGivenUp(poll([](bps_transport*, bps_event*, size_t) -> size_t { return 1000; }).Connected(),
                "returned 1000 events from poll, with room for 4");
  ExpectGivenUp(poll(Report<77, 0>).Connected(), "reported an event of type 77");
  ExpectGivenUp(poll(Report<BPS_EVENT_WRITTEN, 6>).Connected(), "reported WRITTEN of the operation 6");
  ExpectGivenUp(poll(Report<BPS_EVENT_SENT, 5>).Connected(), "reported SENT of the operation 5");
  ExpectGivenUp(poll([](bps_transport*, bps_event*, size_t) -> size_t { throw std::runtime_error("no"); }).Connected(),
                "threw an exception in poll: no");
}

TEST(TransportTest, AnOperationEndsOnce) {
  const Wrong wrong([](bps_transport_table* table) { table->poll = Report<BPS_EVENT_WRITTEN, 5>; });
  Transport transport = wrong.Connected();
  bps_event event{};
  ASSERT_EQ(transport.Poll(&event, 1), 1u);
  EXPECT_EQ(event.type, static_cast<uint32_t>(BPS_EVENT_WRITTEN));
  EXPECT_EQ(event.user, 5u);
  ExpectGivenUp(std::move(transport), "reported WRITTEN of the operation 5, which it was not given or which had ended");
}

TEST(TransportTest, WhatPostThrowsBreaksItToo) {
  const Wrong wrong([](bps_transport_table* table) {
    table->post_send = [](bps_transport*, bps_peer, const void*, size_t, uint64_t) -> int32_t {
      throw std::runtime_error("no");
    };
  });
  Transport transport = wrong.Connected();
  EXPECT_EQ(transport.PostSend(1, nullptr, 0, 0), BPS_UNAVAILABLE);
  ExpectGivenUp(std::move(transport), "threw an exception in post_send: no");
}

TEST(TransportTest, ARegionThatIsNoneIsAnError) {
  const Wrong wrong([](bps_transport_table* table) {
    table->reg = [](bps_transport*, void*, size_t, bps_region**, bps_failure*) -> int32_t { return BPS_OK; };
  });
  Transport transport = wrong.Connected();
  char memory[64];
  auto* region = reinterpret_cast<bps_region*>(memory);
  const absl::Status status = transport.Reg(memory, sizeof memory, &region);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.ToString().find("transport \"shm\" answered reg with success and no region"), std::string::npos)
      << status;
}

TEST(TransportTest, ACapabilityThatIsTooLittleIsNamed) {
  const Wrong wrong([](bps_transport_table* table) {
    table->caps = [](bps_transport*, bps_transport_caps* caps) {
      caps->immediate_bits = 24;
      caps->max_message = 16384;
      caps->receive_pool = 3;
      caps->max_transfer = 1 << 20;
    };
  });
  const absl::Status status = wrong.Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.ToString().find("transport \"shm\" has the capability receive_pool = 3; abi/transport.h demands at "
                                   "least 16"),
            std::string::npos)
      << status;
}

TEST(TransportTest, WhatPluginsOfTheFirstVersionLeaveInPeerDownIsNotRead) {
  EXPECT_EQ(Downer(0).Poll().size, 0u);
  EXPECT_EQ(Downer(1).Poll().size, 99u);
}

}  // namespace
}  // namespace byteps
