#include "core/transports/transport_set.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "core/plugin/region.h"

extern "C" int32_t bps_transport_plugin_v1_tcp(const bps_plugin_host* host, const bps_transport_plugin** plugin);
extern "C" int32_t bps_transport_plugin_v1_shm(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps {
namespace {

constexpr Time kPatience = 60 * kSecond;

// One end, with what it has heard.
class End {
 public:
  explicit End(const std::string& shm, const std::string& network = "tcp", const std::string& lanes = "1",
               const std::string& host = "127.0.0.1")
      : config_(
            Config::Make({{"BYTEPS_SHM", shm}, {"BYTEPS_TRANSPORT", network}, {"BYTEPS_TCP_LANES", lanes}}).value()),
        registry_(config_, log_),
        transport_(Open(network, host)) {}

  Transport& transport() { return transport_; }
  std::string address() { return transport_.Address().value(); }
  absl::Status Connect(bps_peer peer, bps_peer called, const std::string& address) {
    const bps_connect_args args{sizeof args, peer, called, address.data(), address.size(), nullptr};
    return transport_.Connect(args);
  }
  void Poll() {
    std::array<bps_event, 8> events;
    const size_t count = transport_.Poll(events.data(), events.size());
    for (size_t i = 0; i < count; ++i) {
      const bps_event& event = events[i];
      if (event.type == BPS_EVENT_MESSAGE) {
        messages[event.peer].emplace_back(static_cast<const char*>(event.data), event.size);
        transport_.Release(event.lease);
      } else if (event.type == BPS_EVENT_IMMEDIATE) {
        immediates.push_back(event.immediate);
      } else if (event.type == BPS_EVENT_WRITTEN) {
        written.push_back(event.code);
      } else if (event.type == BPS_EVENT_PEER_DOWN) {
        down.push_back(event.peer);
      } else if (event.type == BPS_EVENT_DISCONNECTED) {
        disconnected.push_back(event.peer);
      }
    }
  }

  std::map<bps_peer, std::vector<std::string>> messages;
  std::vector<uint32_t> immediates;
  std::vector<int32_t> written;
  std::vector<bps_peer> down, disconnected;

 private:
  Transport Open(const std::string& network, const std::string& host) {
    registry_.RegisterBuiltin(bps_transport_plugin_v1_tcp);
    registry_.RegisterBuiltin(bps_transport_plugin_v1_shm);
    return OpenTransports(&registry_, config_, network, host, log_).value();
  }

  Logger log_;
  Config config_;
  PluginRegistry registry_;
  Transport transport_;
};

bool Until(const std::vector<End*>& ends, const std::function<bool()>& done) {
  const Time deadline = Now() + kPatience;
  while (!done()) {
    if (Now() > deadline) return false;
    for (End* end : ends) end->Poll();
  }
  return true;
}

// Connects both ways; a message goes both ways.
void Join(End* a, bps_peer to_b, End* b, bps_peer to_a) {
  ASSERT_TRUE(a->Connect(to_b, to_a, b->address()).ok());
  ASSERT_TRUE(b->Connect(to_a, to_b, a->address()).ok());
  ASSERT_EQ(a->transport().PostSend(to_b, "from a", 6, 0), BPS_OK);
  ASSERT_EQ(b->transport().PostSend(to_a, "from b", 6, 0), BPS_OK);
  ASSERT_TRUE(Until({a, b}, [&] { return !a->messages[to_b].empty() && !b->messages[to_a].empty(); }));
  EXPECT_EQ(a->messages[to_b].back(), "from b");
  EXPECT_EQ(b->messages[to_a].back(), "from a");
}

// Writes `size` bytes of a into memory of b.
void Write(End* a, bps_peer to_b, End* b, bps_peer to_a, std::byte* target, Region* region) {
  std::vector<std::byte> source(100'000, std::byte{0x5a});
  std::vector<std::byte> key(b->transport().caps().key_size);
  ASSERT_EQ(b->transport().ExportKey(region->get(), to_a, key.data()), BPS_OK);
  absl::StatusOr<Region> local = Region::Make(&a->transport(), source.data(), source.size());
  ASSERT_TRUE(local.ok());
  const size_t before = b->immediates.size();
  ASSERT_EQ(
      a->transport().PostWrite(to_b, {local->get(), source.data()}, source.size(), {key.data(), key.size(), 0}, 7, 1),
      BPS_OK);
  ASSERT_TRUE(Until({a, b}, [&] { return b->immediates.size() > before && !a->written.empty(); }));
  EXPECT_EQ(std::memcmp(target, source.data(), source.size()), 0);
  std::memset(target, 0, source.size());
}

// Channels of the shm transport that this process has mapped.
size_t Channels() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("byteps-channel") != std::string::npos;
  return count;
}

TEST(TransportSetTest, PeersOfOneHostMeetInSharedMemory) {
  End a("1"), b("1");
  EXPECT_EQ(a.transport().name(), "tcp");
  Join(&a, 5, &b, 6);
  EXPECT_GT(Channels(), 0u);
}

TEST(TransportSetTest, WithoutItOnEitherSideTheyMeetOverTheNetwork) {
  End a("1"), b("0");
  Join(&a, 5, &b, 6);
  EXPECT_EQ(Channels(), 0u);
}

// One memory, shown to peers of both kinds.
TEST(TransportSetTest, PeersOfBothKindsBesideEachOther) {
  End hub("1"), near("1"), far("0");
  Join(&hub, 1, &near, 9);
  Join(&hub, 2, &far, 8);
  // What holds for all of them, and what holds for each.
  EXPECT_FALSE(hub.transport().Has(BPS_TRANSPORT_COPY));
  EXPECT_NE(hub.transport().CapsOf(1).flags & BPS_TRANSPORT_COPY, 0u);
  EXPECT_STRNE(hub.transport().CapsOf(1).provider, "tcp");
  EXPECT_EQ(hub.transport().CapsOf(2).flags & BPS_TRANSPORT_COPY, 0u);
  EXPECT_STREQ(hub.transport().CapsOf(2).provider, "tcp");
  EXPECT_EQ(hub.transport().CapsOf(77).flags, hub.transport().caps().flags) << "nobody yet";
  std::vector<std::byte> memory(100'000);
  Region region = Region::Make(&hub.transport(), memory.data(), memory.size()).value();
  Write(&near, 9, &hub, 1, memory.data(), &region);
  Write(&far, 8, &hub, 2, memory.data(), &region);
  // The same for memory that one of the transports has made.
  bps_region* made = nullptr;
  void* base = nullptr;
  ASSERT_TRUE(hub.transport().Allocate(100'000, &made, &base).ok());
  {
    std::vector<std::byte> key(hub.transport().caps().key_size);
    ASSERT_EQ(hub.transport().ExportKey(made, 2, key.data()), BPS_OK);
    ASSERT_EQ(hub.transport().ExportKey(made, 1, key.data()), BPS_OK);
    std::memset(base, 0x33, 100'000);
    std::vector<std::byte> target(100'000);
    Region there = Region::Make(&far.transport(), target.data(), target.size()).value();
    std::vector<std::byte> far_key(far.transport().caps().key_size);
    ASSERT_EQ(far.transport().ExportKey(there.get(), 8, far_key.data()), BPS_OK);
    ASSERT_EQ(hub.transport().PostWrite(2, {made, base}, 100'000, {far_key.data(), far_key.size(), 0}, 3, 1), BPS_OK);
    ASSERT_TRUE(Until({&hub, &far}, [&] { return !far.immediates.empty() && !hub.written.empty(); }));
    EXPECT_EQ(target[99'999], std::byte{0x33});
  }
  hub.transport().Unreg(made);
  // The end of one disturbs the other in nothing.
  EXPECT_EQ(hub.transport().Disconnect(1), BPS_OK);
  ASSERT_TRUE(Until({&hub, &near, &far}, [&] { return !hub.disconnected.empty(); }));
  Write(&far, 8, &hub, 2, memory.data(), &region);
  EXPECT_EQ(hub.transport().PostSend(1, "x", 1, 0), BPS_UNAVAILABLE);
}

// The addresses of all of them fit into one, IPv6 included, and each side finds what the other one has.
TEST(TransportSetTest, AllLanesBesideSharedMemory) {
  std::ifstream interfaces("/proc/net/if_inet6");
  const bool ipv6 = interfaces && interfaces.peek() != std::ifstream::traits_type::eof();
  const std::string host = ipv6 ? "::1" : "127.0.0.1";
  End many("1", "tcp", "4", host), near("1", "tcp", "4", host), far("0", "tcp", "1", host);
  EXPECT_LE(many.address().size(), size_t{BPS_TRANSPORT_MAX_ADDRESS});
  Join(&many, 1, &near, 9);
  Join(&many, 2, &far, 8);
  std::vector<std::byte> memory(100'000);
  Region region = Region::Make(&many.transport(), memory.data(), memory.size()).value();
  Write(&near, 9, &many, 1, memory.data(), &region);
  Write(&far, 8, &many, 2, memory.data(), &region);
}

// A sleeper wakes for peers of both kinds, also for one that calls before it is known.
TEST(TransportSetTest, ASleeperWakes) {
  for (const char* shm : {"1", "0"}) {
    End a("1"), b(shm);
    Join(&a, 5, &b, 6);
    const auto sleep_until = [&](const std::function<bool()>& done) {
      const Time deadline = Now() + kPatience;
      while (!done() && Now() < deadline) {
        a.Poll();
        if (!a.transport().Arm()) continue;
        pollfd entry{a.transport().WaitFd(), POLLIN, 0};
        ::poll(&entry, 1, 0);
        b.Poll();
      }
      return done();
    };
    ASSERT_EQ(b.transport().PostSend(6, "wake up", 7, 0), BPS_OK);
    EXPECT_TRUE(sleep_until([&] { return a.messages[5].size() == 2; }));
    // Nothing comes: it sleeps in the end.
    EXPECT_TRUE(Until({&b}, [&] {
      a.Poll();
      return a.transport().Arm();
    }));
    pollfd entry{a.transport().WaitFd(), POLLIN, 0};
    int readable = 1;
    for (int i = 0; i < 100 && readable != 0; ++i) {
      a.Poll();
      if (a.transport().Arm()) readable = ::poll(&entry, 1, 10);
    }
    EXPECT_EQ(readable, 0);
  }
}

TEST(TransportSetTest, AListThatIsNoneIsTheNetworksAddressAndNothingInCommonIsSaid) {
  End a("1"), b("1");
  const std::string lone = MemberAddress(b.address(), "tcp").value();
  EXPECT_TRUE(a.Connect(5, 6, lone).ok());
  EXPECT_FALSE(MemberAddress(b.address(), "pigeon").ok());
  EXPECT_FALSE(MemberAddress(lone, "tcp").ok());
  End shm_only("1", "shm"), network_only("0", "tcp");
  const absl::Status status = network_only.Connect(5, 6, shm_only.address());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find("no transport in common"), std::string::npos) << status;
}

// A member of the set says what fails; the set itself has nothing to add.
TEST(TransportSetTest, AFailureIsSaidOnce) {
  End a("1"), b("1");
  ASSERT_TRUE(a.Connect(5, 6, b.address()).ok());
  const absl::Status again = a.Connect(5, 6, b.address());
  EXPECT_EQ(again.message(), "peer number 5 is in use");
  void* base = nullptr;
  bps_region* region = nullptr;
  const absl::Status nothing = a.transport().Allocate(0, &region, &base);
  EXPECT_EQ(nothing.message(), "allocating 0 bytes of memory: a region needs a size");
}

}  // namespace
}  // namespace byteps
