// The simulated fabric itself: it repeats itself, its knobs do what they say, its streams hold, and its checks bite.

#include "transport_plugins/sim/fabric.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "gtest/gtest.h"
#include "tests/transport/station.h"

namespace byteps::sim {
namespace {

using byteps::testing::Memory;
using byteps::testing::OpenTransport;
using byteps::testing::Station;
using byteps::testing::TransportWorld;

// The stations of a fabric test close their endpoints in their destructors and do nothing else with the world.
class NoWorld : public TransportWorld {
 public:
  OpenTransport Open() override { return {}; }
  int64_t Now() override { return 0; }
  void Pass() override {}
  bool Die(const OpenTransport&) override { return false; }
  bool RealTime() const override { return false; }
};

// Two joined stations on a fabric that notes violations instead of aborting.
struct Net {
  explicit Net(FabricOptions options = {}) : fabric(Noting(std::move(options))) {
    a.Connect(1, 2, b.address());
    b.Connect(2, 1, a.address());
  }
  FabricOptions Noting(FabricOptions options) {
    options.violation = [this](const std::string& what) { violations.push_back(what); };
    return options;
  }
  Station Open(const std::string& node) {
    const SimTransport opened = fabric.Open(node);
    return Station(&world, {opened.table, opened.transport});
  }
  void Run(Time until = kSecond * 1000) {
    fabric.RunUntil(
        [&] {
          a.Poll();
          b.Poll();
          return false;
        },
        until);
  }
  bool Violated(const std::string& text) const {
    return std::any_of(violations.begin(), violations.end(),
                       [&](const std::string& violation) { return violation.find(text) != std::string::npos; });
  }

  std::vector<std::string> violations;
  NoWorld world;
  SimFabric fabric;
  Station a = Open("a");
  Station b = Open("b");
};

uint64_t RunOf(uint64_t seed) {
  FabricOptions options;
  options.seed = seed;
  Random random(seed);
  options.link = AdverseLink(random);
  options.endpoint = AdverseEndpoint(random);
  options.endpoint.first_send = 0;  // or nothing would be taken at all
  Net net(options);
  Memory& source = net.a.NewMemory(1 << 16);
  const std::string key = net.b.Key(net.b.NewMemory(1 << 16).region, 2);
  for (uint32_t i = 0; i < 16; ++i) {
    net.a.Send(1, "hello");
    net.a.Write(1, source.region, source.at(0), 1 << 12, key, i << 12, i);
  }
  net.Run();
  EXPECT_TRUE(net.violations.empty());
  return net.fabric.Fingerprint();
}

TEST(FabricTest, TheSameSeedGivesTheSameRunAndAnotherSeedAnother) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(RunOf(seed), RunOf(seed)) << seed;
    EXPECT_NE(RunOf(seed), RunOf(seed + 1)) << seed;
  }
}

TEST(FabricTest, LatencyAndBandwidthTakeTheirTime) {
  FabricOptions options;
  options.link.latency = kMillisecond;
  options.link.bytes_per_second = 1'000'000'000;
  Net net(options);
  Memory& source = net.a.NewMemory(1'000'000);
  const std::string key = net.b.Key(net.b.NewMemory(1'000'000).region, 2);
  Time landed = 0;
  net.b.on_immediate = [&](uint32_t) { landed = net.fabric.now(); };
  ASSERT_EQ(net.a.Write(1, source.region, source.at(0), 1'000'000, key, 0, 1), BPS_OK);
  net.Run();
  EXPECT_GE(landed, 2 * kMillisecond);
  EXPECT_LT(landed, 2 * kMillisecond + 10 * kMicrosecond);
}

// What a socket's buffer has taken is the writer's again, and arrives no sooner for it.
TEST(FabricTest, ASocketTakesWhatItsBufferHolds) {
  FabricOptions options;
  options.endpoint.bytes_per_second = 1'000'000'000;
  options.endpoint.socket_bytes = 1'000'000;
  Net net(options);
  Memory& source = net.a.NewMemory(1'500'000, std::byte{1});
  Memory& target = net.b.NewMemory(1'500'000);
  const std::string key = net.b.Key(target.region, 2);
  std::vector<Time> landed;
  net.b.on_immediate = [&](uint32_t) { landed.push_back(net.fabric.now()); };
  std::vector<uint64_t> writes;
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(net.a.Write(1, source.region, source.at(500'000 * i), 500'000, key, 500'000 * i, i), BPS_OK);
    writes.push_back(net.a.last_user());
  }
  net.Run(400 * kMicrosecond);
  EXPECT_TRUE(net.a.Ended(writes[0]));
  EXPECT_TRUE(net.a.Ended(writes[1]));
  EXPECT_FALSE(net.a.Ended(writes[2])) << "before the first has left";
  EXPECT_TRUE(landed.empty());
  std::memset(source.at(0), 2, 1'000'000);  // no peer reads it any more
  net.Run();
  EXPECT_TRUE(net.a.Ended(writes[2]));
  ASSERT_EQ(landed.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_GE(landed[i], static_cast<Time>(500 * (i + 1)) * kMicrosecond);
  EXPECT_EQ(*target.at(0), std::byte{1});
  EXPECT_EQ(*target.at(1'499'999), std::byte{1});
  EXPECT_TRUE(net.violations.empty());
}

// When a write of a megabyte from one endpoint has landed at the other, and for how long it had the link of the first.
Time LandedBetween(const std::string& nic_of_a, const std::string& nic_of_b, Time* carried_out) {
  SimFabric fabric({});
  NoWorld world;
  EndpointOptions options;
  options.bytes_per_second = 1'000'000'000;
  options.carries = [&](const std::string& node, bool out, Time begin, Time end) {
    if (node == "a" && out) *carried_out += end - begin;
  };
  options.nic = nic_of_a;
  const SimTransport opened_a = fabric.Open("a", options);
  options.nic = nic_of_b;
  const SimTransport opened_b = fabric.Open("b", options);
  Station a(&world, {opened_a.table, opened_a.transport});
  Station b(&world, {opened_b.table, opened_b.transport});
  a.Connect(1, 2, b.address());
  b.Connect(2, 1, a.address());
  Memory& source = a.NewMemory(1'000'000);
  const std::string key = b.Key(b.NewMemory(1'000'000).region, 2);
  Time landed = 0;
  b.on_immediate = [&](uint32_t) { landed = fabric.now(); };
  EXPECT_EQ(a.Write(1, source.region, source.at(0), 1'000'000, key, 0, 1), BPS_OK);
  fabric.RunUntil(
      [&] {
        a.Poll();
        b.Poll();
        return false;
      },
      kSecond);
  return landed;
}

TEST(FabricTest, EndpointsOfOneNicDoWithoutItAmongThemselves) {
  Time carried = 0;
  EXPECT_GE(LandedBetween("", "", &carried), kMillisecond);
  EXPECT_GE(carried, kMillisecond);
  EXPECT_LT(carried, kMillisecond + 10 * kMicrosecond);
  EXPECT_GE(LandedBetween("x", "y", &carried), kMillisecond);
  carried = 0;
  EXPECT_LT(LandedBetween("x", "x", &carried), 100 * kMicrosecond);
  EXPECT_EQ(carried, 0);
}

TEST(FabricTest, WritesAreReorderedAndMessagesAreNot) {
  FabricOptions options;
  options.link.reorder = kMillisecond;
  options.endpoint.receive_pool = 64;
  Net net(options);
  Memory& source = net.a.NewMemory(8);
  const std::string key = net.b.Key(net.b.NewMemory(8).region, 2);
  for (uint32_t i = 0; i < 30; ++i) {
    ASSERT_EQ(net.a.Send(1, std::to_string(i)), BPS_OK);
    ASSERT_EQ(net.a.Write(1, source.region, source.at(0), 8, key, 0, i), BPS_OK);
  }
  net.Run();
  ASSERT_EQ(net.b.messages(2).size(), 30u);
  for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(net.b.messages(2)[i], std::to_string(i));
  ASSERT_EQ(net.b.immediates().size(), 30u);
  EXPECT_FALSE(std::is_sorted(net.b.immediates().begin(), net.b.immediates().end()));
}

TEST(FabricTest, AgainComesFromDepthChanceAndTheFirstSend) {
  FabricOptions options;
  options.endpoint.tx_depth = 4;
  Net depth(options);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(depth.a.Send(1, "x"), BPS_OK);
  EXPECT_EQ(depth.a.Send(1, "x"), BPS_TRANSPORT_AGAIN);
  depth.Run();
  EXPECT_EQ(depth.a.Send(1, "x"), BPS_OK);

  options = {};
  options.endpoint.first_send = kMillisecond;
  int woken = 0;
  options.endpoint.wake = [&] { ++woken; };
  Net first(options);
  EXPECT_EQ(first.a.Send(1, "x"), BPS_TRANSPORT_AGAIN);
  bool accepted = false;
  // A peer that was answered with AGAIN is woken to try again.
  EXPECT_TRUE(first.fabric.RunUntil(
      [&] {
        if (woken > 0) accepted = first.a.Send(1, "x") == BPS_OK;
        woken = 0;
        return accepted;
      },
      kSecond));
  EXPECT_GE(first.fabric.now(), kMillisecond);
}

TEST(FabricTest, ACutLinkHoldsWhatIsUnderWayUntilItIsHealed) {
  Net net;
  net.fabric.Cut("a", "b");
  for (int i = 0; i < 10; ++i) net.a.Send(1, std::to_string(i));
  net.Run();
  EXPECT_TRUE(net.b.messages(2).empty());
  net.fabric.Heal("a", "b");
  net.a.Send(1, "10");
  net.Run();
  ASSERT_EQ(net.b.messages(2).size(), 11u);
  for (size_t i = 0; i < 11; ++i) EXPECT_EQ(net.b.messages(2)[i], std::to_string(i));
}

TEST(FabricTest, ASilentDeathIsNeverHeardOf) {
  Net net;
  net.fabric.Kill("b", Death::kSilent);
  EXPECT_EQ(net.a.Send(1, "x"), BPS_TRANSPORT_AGAIN);
  net.Run();
  EXPECT_FALSE(net.a.down(1));
  EXPECT_EQ(net.a.Send(1, "x"), BPS_TRANSPORT_AGAIN);
}

TEST(FabricTest, ANoticedDeathIsHeardOfAfterItsDelay) {
  FabricOptions options;
  options.down_delay = 10 * kMillisecond;
  Net net(options);
  net.fabric.Timer(kMillisecond, [&] { net.fabric.Kill("b"); });
  ASSERT_TRUE(net.fabric.RunUntil(
      [&] {
        net.a.Poll();
        return net.a.down(1);
      },
      kSecond));
  EXPECT_GE(net.fabric.now(), 11 * kMillisecond);
  EXPECT_EQ(net.a.Send(1, "x"), BPS_UNAVAILABLE);
  EXPECT_TRUE(net.violations.empty());
}

TEST(FabricTest, VoidKeysDropWrites) {
  Net net;
  Memory& source = net.a.NewMemory(64, std::byte{1});
  Memory& target = net.b.NewMemory(64);
  const std::string key = net.b.Key(target.region, 2);
  net.fabric.InvalidateKeys("b");
  net.a.Write(1, source.region, source.at(0), 64, key, 0, 1);
  net.Run();
  EXPECT_EQ(target.bytes, std::vector<std::byte>(64));
  EXPECT_EQ(net.fabric.stats().dropped_writes, 1u);
  EXPECT_TRUE(net.violations.empty());
}

// ---- The checks bite ----

TEST(FabricChecks, ABufferThatChangesWhileTheTransportOwnsIt) {
  Net net;
  Memory& source = net.a.NewMemory(64);
  const std::string key = net.b.Key(net.b.NewMemory(64).region, 2);
  net.a.Write(1, source.region, source.at(0), 64, key, 0, 1);
  source.bytes[63] = std::byte{1};
  net.Run();
  EXPECT_TRUE(net.Violated("was changed while the transport owned it"));
}

TEST(FabricChecks, AReceivePoolThatIsOverrun) {
  Net net;
  net.b.Hold(true);
  for (int i = 0; i < 17; ++i) net.a.Send(1, "x");
  net.Run();
  EXPECT_TRUE(net.Violated("overran the receive pool of 16"));
}

TEST(FabricChecks, AnUnknownPeer) {
  Net net;
  EXPECT_EQ(net.a.Send(99, "x"), BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(net.Violated("post_send to unknown peer 99"));
}

TEST(FabricChecks, ALeakedLeaseAndALeakedRegion) {
  Net net;
  const SimTransport c = net.fabric.Open("c");
  bps_region* region = nullptr;
  int memory = 0;
  ASSERT_EQ(c.table->reg(c.transport, &memory, sizeof memory, &region, nullptr), BPS_OK);
  c.table->close(c.transport);
  EXPECT_TRUE(net.Violated("1 region(s) still registered"));

  net.a.Send(1, "x");
  while (net.fabric.Step()) {
  }
  bps_event event;
  while (net.b.table().poll(net.b.transport(), &event, 1) == 1) {
  }
  net.b.Close();
  EXPECT_TRUE(net.Violated("1 message(s) not released"));
}

TEST(FabricChecks, AWriteBeyondARegionAndAForgedOrBorrowedKey) {
  Net net;
  Memory& source = net.a.NewMemory(64);
  std::string key = net.b.Key(net.b.NewMemory(64).region, 2);
  net.a.Write(1, source.region, source.at(0), 64, key, 1, 1);
  net.Run();
  EXPECT_TRUE(net.Violated("of a region of 64 bytes"));
  key[8] = static_cast<char>(key[8] ^ 1);
  net.a.Write(1, source.region, source.at(0), 64, key, 0, 1);
  net.Run();
  EXPECT_TRUE(net.Violated("a key that was never exported here"));
}

TEST(FabricChecks, LocalMemoryThatIsNotRegistered) {
  FabricOptions options;
  options.endpoint.flags = 0;
  Net net(options);
  const std::string key = net.b.Key(net.b.NewMemory(64).region, 2);
  std::byte own[64] = {};
  EXPECT_EQ(net.a.Write(1, nullptr, own, 64, key, 0, 1), BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(net.Violated("local memory that is not registered"));
}

TEST(FabricChecksDeathTest, AViolationEndsTheRunWithItsSeed) {
  FabricOptions options;
  options.seed = 4711;
  SimFabric fabric(options);
  EXPECT_DEATH(fabric.Violation("told so"), "told so(.|\n)*BYTEPS_SIM_SEED=4711");
}

// ---- Streams ----

struct Recorder : StreamHandler {
  void OnAccept(StreamId stream, const std::string& node) override {
    accepted = stream;
    peer = node;
  }
  void OnConnected(StreamId) override { connected = true; }
  void OnBytes(StreamId, std::string_view piece) override {
    bytes += piece;
    ++pieces;
  }
  void OnClosed(StreamId, const std::string& reason) override {
    ++closed;
    why = reason;
  }
  StreamId accepted = 0;
  std::string peer, bytes, why;
  bool connected = false;
  int closed = 0, pieces = 0;
};

TEST(FabricStreams, BytesArriveInOrderAndInOtherPieces) {
  FabricOptions options;
  options.link.jitter = kMillisecond;
  SimFabric fabric(options);
  Recorder server, client;
  fabric.Listen("server", 80, &server);
  const StreamId stream = fabric.Dial("client", "server", 80, &client);
  while (!client.connected && fabric.Step()) {
  }
  EXPECT_EQ(server.peer, "client");
  std::string sent;
  for (int i = 0; i < 100; ++i) {
    const std::string text = "line " + std::to_string(i) + "\n";
    sent += text;
    fabric.WriteStream(stream, text);
    fabric.WriteStream(server.accepted, text);
  }
  fabric.CloseStream(stream);
  while (fabric.Step()) {
  }
  EXPECT_EQ(server.bytes, sent);
  EXPECT_NE(server.pieces, 100);
  EXPECT_EQ(server.closed, 1);
  EXPECT_EQ(client.closed, 0);
}

TEST(FabricStreams, NoEndpointListensOrTheNodeDies) {
  SimFabric fabric({});
  Recorder server, refused, killed;
  fabric.Dial("client", "server", 81, &refused);
  fabric.Listen("server", 80, &server);
  fabric.Dial("client", "server", 80, &killed);
  while (fabric.Step()) {
  }
  EXPECT_EQ(refused.closed, 1);
  EXPECT_NE(refused.why.find("server:81 refused"), std::string::npos) << refused.why;
  EXPECT_TRUE(killed.connected);
  fabric.WriteStream(server.accepted, "last words");
  fabric.Kill("server");
  while (fabric.Step()) {
  }
  EXPECT_EQ(killed.bytes, "last words");
  EXPECT_EQ(killed.closed, 1);
  EXPECT_NE(killed.why.find("reset by server"), std::string::npos) << killed.why;
  EXPECT_EQ(server.closed, 0) << "the dead hear nothing";
}

}  // namespace
}  // namespace byteps::sim
