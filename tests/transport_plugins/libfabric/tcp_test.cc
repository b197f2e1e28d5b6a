// What the tcp plugin promises beyond the conformance suite (tests/transport): who is let in, the fence in the middle
// of a write, and what it says of itself.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport_plugins/libfabric/node.h"

namespace byteps::testing {
namespace {

constexpr size_t kLarge = size_t{64} << 20;

size_t Untouched(const std::vector<char>& memory, char value) {
  return static_cast<size_t>(std::count(memory.begin(), memory.end(), value));
}

TEST(Tcp, SaysAtOpenWhatItRunsOn) {
  Node node;
  for (const char* fact : {"provider tcp", "libfabric", "127.0.0.1:", "mr_mode", "tx ", "rx ", "wait fd"}) {
    EXPECT_NE(node.log().find(fact), std::string::npos) << fact << " is missing in: " << node.log();
  }
  EXPECT_NE(std::string(node.caps().provider).find("tcp"), std::string::npos);
}

TEST(Tcp, Probes) {
  std::string reason;
  EXPECT_EQ(TcpPlugin().probe(nullptr, reinterpret_cast<bps_failure*>(&reason)), BPS_OK) << reason;
  EXPECT_STREQ(TcpPlugin().info.name, "tcp");
}

TEST(Tcp, ChoosesAnInterfaceByNameAndSaysWhichThereAre) {
  Node node({.local_host = nullptr, .device = "lo"});
  EXPECT_NE(node.log().find("address 127.0.0.1:"), std::string::npos) << node.log();
  try {
    Node none({.local_host = nullptr, .device = "eth99"});
    ADD_FAILURE() << "opened on eth99";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("\"eth99\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("lo"), std::string::npos) << error.what();
  }
}

bool HasIpv6() {
  std::ifstream interfaces("/proc/net/if_inet6");
  return interfaces && interfaces.peek() != EOF;
}

TEST(Tcp, RunsOverIpv6) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  Node a({.local_host = "::1"}), b({.local_host = "::1"});
  EXPECT_NE(a.log().find("address [::1]:"), std::string::npos) << a.log();
  Join(a, 1, b, 2);
  std::vector<char> target(1 << 20, 0), source(1 << 20, 1);
  bps_region* to = b.Reg(target.data(), target.size());
  bps_region* from = a.Reg(source.data(), source.size());
  ASSERT_EQ(a.Write(1, from, source.data(), source.size(), b.Key(to, 2), 0, 5), BPS_OK);
  ASSERT_TRUE(Until(
      a, b, [&] { return b.Count(BPS_EVENT_IMMEDIATE, 2) == 1 && a.Count(BPS_EVENT_WRITTEN) == 1; }, 60));
  EXPECT_EQ(target, source);
  b.Unreg(to);
  a.Unreg(from);
}

TEST(Tcp, AnImmediateTellsWhoWrote) {
  Node hub, a, b;
  Join(hub, 70'000, a, 5);
  Join(hub, 0xfffffffe, b, 5);
  std::vector<char> target(64), source(64);
  bps_region* region = hub.Reg(target.data(), target.size());
  bps_region* from_a = a.Reg(source.data(), source.size());
  bps_region* from_b = b.Reg(source.data(), source.size());
  ASSERT_EQ(a.Write(5, from_a, source.data(), 64, hub.Key(region, 70'000), 0, 0xffffffff), BPS_OK);
  ASSERT_EQ(b.Write(5, from_b, source.data(), 64, hub.Key(region, 0xfffffffe), 0, 1), BPS_OK);
  ASSERT_TRUE(Until(
      hub, a, [&] { return b.Poll(), hub.Count(BPS_EVENT_IMMEDIATE) == 2; }, 60));
  EXPECT_EQ(hub.Count(BPS_EVENT_IMMEDIATE, 70'000), 1u);
  EXPECT_EQ(hub.Count(BPS_EVENT_IMMEDIATE, 0xfffffffe), 1u);
  hub.Unreg(region);
  a.Unreg(from_a);
  b.Unreg(from_b);
}

TEST(Tcp, AWriteBeyondTheRegionIsRefusedWhereItIsPosted) {
  Node a, b;
  Join(a, 1, b, 2);
  std::vector<char> target(100), source(200);
  bps_region* to = b.Reg(target.data(), target.size());
  bps_region* from = a.Reg(source.data(), source.size());
  const std::string key = b.Key(to, 2);
  EXPECT_EQ(a.Write(1, from, source.data(), 101, key, 0, 0), BPS_OUT_OF_RANGE);
  EXPECT_EQ(a.Write(1, from, source.data(), 1, key, 100, 0), BPS_OUT_OF_RANGE);
  EXPECT_EQ(a.Write(1, from, source.data(), 2, key, ~uint64_t{0}, 0), BPS_OUT_OF_RANGE);
  EXPECT_EQ(a.Write(1, from, source.data() + 150, 51, key, 0, 0), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(a.Write(1, from, source.data(), 1, key.substr(1), 0, 0), BPS_INVALID_ARGUMENT);
  b.Unreg(to);
  a.Unreg(from);
}

TEST(Tcp, AddressesThatAreNoneAreRefusedWithAReason) {
  Node a, b;
  EXPECT_EQ(a.Connect(1, 1, "nonsense"), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(a.Connect(1, 1, b.address().substr(0, 20)), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(a.Connect(1, 1, std::string(200, 'x')), BPS_INVALID_ARGUMENT);
  EXPECT_NE(a.failure().find("peer 1"), std::string::npos) << a.failure();
  EXPECT_EQ(a.Connect(1, 1, a.address()), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(a.Connect(1, 1, b.address()), BPS_OK);
  EXPECT_EQ(a.Connect(1, 1, b.address()), BPS_ALREADY_EXISTS);
}

TEST(Tcp, AddressesOfTwoKindsAreNamed) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  Node a;
  Node b({.local_host = "::1"});
  EXPECT_EQ(a.Connect(1, 2, b.address()), BPS_INVALID_ARGUMENT);
  EXPECT_NE(a.failure().find("is IPv6, that of this end IPv4"), std::string::npos) << a.failure();
  EXPECT_NE(a.failure().find("DMLC_NODE_HOST"), std::string::npos) << a.failure();
  EXPECT_EQ(b.Connect(2, 1, a.address()), BPS_INVALID_ARGUMENT);
  EXPECT_NE(b.failure().find("is IPv4, that of this end IPv6"), std::string::npos) << b.failure();
}

TEST(Tcp, AProcessWithoutDescriptorsIsToldHowManyItMayHave) {
  const Node loaded;  // what is opened once is open
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  std::vector<std::string> failures;
  bool opened = false;
  for (rlim_t left = 0; left < 64 && !opened; ++left) {
    const rlimit few{static_cast<rlim_t>(next) + left, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    try {
      const Node node;
      opened = true;
    } catch (const std::runtime_error& error) {
      failures.emplace_back(error.what());
    }
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  EXPECT_TRUE(opened);
  const auto advised = [&](const std::string& text) { return text.find("(ulimit -n is ") != std::string::npos; };
  EXPECT_TRUE(std::any_of(failures.begin(), failures.end(), advised)) << ::testing::PrintToString(failures);
}

// A peer that calls is refused: which of the two that is depends on random numbers, and both directions must hold.
TEST(Tcp, AnotherJobIsNotLetIn) {
  for (int round = 0; round < 8; ++round) {
    Node a({.config = {{"BYTEPS_PEER_TIMEOUT", "0.3"}}, .job_key = 1});
    Node b({.config = {{"BYTEPS_PEER_TIMEOUT", "0.3"}}, .job_key = 2});
    ASSERT_EQ(a.Connect(1, 2, b.address()), BPS_OK);
    ASSERT_EQ(b.Connect(2, 1, a.address()), BPS_OK);
    a.Send(1, "let me in");
    b.Send(2, "let me in");
    EXPECT_TRUE(Until(
        a, b, [&] { return a.down(1) && b.down(2); }, 60));
    EXPECT_TRUE(a.messages().empty() && b.messages().empty());
  }
}

TEST(Tcp, NoPeerCanTakeThePlaceOfAPeer) {
  int refused = 0;
  for (int round = 0; round < 16 || (refused == 0 && round < 60); ++round) {
    Node hub, peer, thief;
    ASSERT_EQ(hub.Connect(1, 9, peer.address()), BPS_OK);
    // The thief claims the number of the peer, which has not connected yet.
    ASSERT_EQ(thief.Connect(9, 1, hub.address()), BPS_OK);
    thief.Send(9, "it is me");
    Until(
        hub, thief, [&] { return thief.down(9); }, 0.05);
    refused += thief.down(9);
    EXPECT_TRUE(hub.messages().empty());
    ASSERT_EQ(peer.Connect(9, 1, hub.address()), BPS_OK);
    ASSERT_EQ(peer.Send(9, "it is really me"), BPS_OK);
    EXPECT_TRUE(Until(
        hub, peer, [&] { return !hub.messages().empty(); }, 60));
    EXPECT_EQ(hub.messages()[0], "it is really me");
  }
  EXPECT_GT(refused, 0);  // in about half of the rounds it is the thief who calls
}

TEST(Tcp, AMessageAndAWriteGoAsOne) {
  Node a, b;
  Join(a, 1, b, 2);
  std::vector<char> target(1 << 20, 0), source(1 << 20, 1);
  bps_region* to = b.Reg(target.data(), target.size());
  bps_region* from = a.Reg(source.data(), source.size());
  const std::string key = b.Key(to, 2);
  const std::string longest(a.caps().max_message, 'x');
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_EQ(a.SendAndWrite(1, i % 2 == 0 ? longest : "short", from, source.data(), source.size(), key, i, 7), BPS_OK);
    ASSERT_TRUE(Until(
        a, b, [&] { return b.Count(BPS_EVENT_IMMEDIATE, 2) == i + 1 && a.Count(BPS_EVENT_WRITTEN) == i + 1; }, 60));
    ASSERT_EQ(b.messages().size(), i + 1) << "on one stream the message is there first";
    EXPECT_EQ(b.messages().back(), i % 2 == 0 ? longest : "short");
  }
  EXPECT_EQ(a.Count(BPS_EVENT_SENT), 0u);
  EXPECT_EQ(target, source);
  EXPECT_EQ(a.SendAndWrite(1, "", from, source.data(), 1, key, 1), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(a.SendAndWrite(1, longest + "x", from, source.data(), 1, key, 1), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(a.SendAndWrite(1, "beyond", from, source.data(), source.size(), key.substr(1), 1), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(a.SendAndWrite(9, "nobody", from, source.data(), 1, key, 1), BPS_UNAVAILABLE);
  b.Unreg(to);
  a.Unreg(from);
}

// What the connection has not taken yet is posted by itself, so that each can be taken back by itself; nothing is lost
// and nothing comes twice when the sender is faster than its peer.
TEST(Tcp, AMessageAndAWriteToWhomItIsTooMuch) {
  Node a, b;
  Join(a, 1, b, 2);
  constexpr size_t kSize = 4 << 20;
  std::vector<char> target(kSize, 0), source(kSize, 1);
  bps_region* to = b.Reg(target.data(), target.size());
  bps_region* from = a.Reg(source.data(), source.size());
  const std::string key = b.Key(to, 2);
  uint32_t posted = 0;
  int32_t code = BPS_OK;
  // No peer receives meanwhile.
  while (posted < 1000 &&
         (code = a.SendAndWrite(1, std::to_string(posted), from, source.data(), kSize, key, posted)) == BPS_OK) {
    ++posted;
    a.Poll();
  }
  EXPECT_GT(posted, 0u);
  EXPECT_TRUE(code == BPS_UNIMPLEMENTED || code == BPS_TRANSPORT_AGAIN) << code;
  ASSERT_TRUE(Until(
      a, b, [&] { return b.Count(BPS_EVENT_IMMEDIATE, 2) == posted && a.Count(BPS_EVENT_WRITTEN) == posted; }, 60));
  ASSERT_EQ(b.messages().size(), posted);
  for (uint32_t i = 0; i < posted; ++i) EXPECT_EQ(b.messages()[i], std::to_string(i));
  b.Unreg(to);
  a.Unreg(from);
}

// The fence in the middle of a write of 64 MiB: the rest of it must not land. `together`: the write is announced by the
// message ahead of it.
void CutInTheMiddle(bool unreg, bool together) {
  Node hub, bad, good;
  Join(hub, 1, bad, 10);
  Join(hub, 2, good, 20);
  std::vector<char> window(kLarge, 0), source(kLarge, 1), calm(64, 0);
  bps_region* to = hub.Reg(window.data(), window.size());
  bps_region* calm_to = hub.Reg(calm.data(), calm.size());
  bps_region* from = bad.Reg(source.data(), source.size());
  bps_region* good_from = good.Reg(source.data(), source.size());
  const std::string key = hub.Key(to, 1);
  ASSERT_EQ(together ? bad.SendAndWrite(10, "ahead", from, source.data(), kLarge, key, 5)
                     : bad.Write(10, from, source.data(), kLarge, key, 0, 5),
            BPS_OK);
  ASSERT_TRUE(Until(
      hub, bad, [&] { return window[kLarge / 4] != 0; }, 60));
  ASSERT_EQ(window[kLarge - 1], 0) << "the write was over too early for this test";
  if (unreg) {
    hub.Unreg(to);  // no peer polls the sender meanwhile: it cannot end in peace
  } else {
    ASSERT_EQ(hub.Disconnect(1), BPS_OK);
    ASSERT_TRUE(hub.Until([&] { return hub.Count(BPS_EVENT_DISCONNECTED, 1) == 1; }, 60));
  }
  std::memset(window.data(), 2, window.size());
  ASSERT_TRUE(Until(
      hub, bad, [&] { return bad.down(10); }, 60));
  ASSERT_EQ(good.Write(20, good_from, source.data(), 64, hub.Key(calm_to, 2), 0, 6), BPS_OK);
  ASSERT_TRUE(Until(
      hub, good, [&] { return hub.Count(BPS_EVENT_IMMEDIATE, 2) == 1; }, 60));
  EXPECT_EQ(Untouched(window, 2), window.size());
  EXPECT_EQ(hub.Count(BPS_EVENT_IMMEDIATE, 1), 0u);
  EXPECT_EQ(bad.Count(BPS_EVENT_WRITTEN), 1u);
  EXPECT_FALSE(hub.down(2));
  if (!unreg) hub.Unreg(to);
  hub.Unreg(calm_to);
  bad.Unreg(from);
  good.Unreg(good_from);
}

TEST(Tcp, DisconnectCutsAWriteInTheMiddle) { CutInTheMiddle(/*unreg=*/false, /*together=*/false); }
TEST(Tcp, DisconnectCutsAnAnnouncedWriteInTheMiddle) { CutInTheMiddle(/*unreg=*/false, /*together=*/true); }
TEST(Tcp, UnregCutsAWriteInTheMiddle) { CutInTheMiddle(/*unreg=*/true, /*together=*/false); }
TEST(Tcp, UnregCutsAnAnnouncedWriteInTheMiddle) { CutInTheMiddle(/*unreg=*/true, /*together=*/true); }

// A write that is nearly through is not cut: unreg waits for it while the provider makes progress.
TEST(Tcp, UnregLeavesAQuietPeerConnected) {
  Node a, b;
  Join(a, 1, b, 2);
  std::vector<char> target(1 << 20, 0), source(1 << 20, 1);
  for (int round = 0; round < 20; ++round) {
    bps_region* to = b.Reg(target.data(), target.size());
    bps_region* from = a.Reg(source.data(), source.size());
    ASSERT_EQ(a.Write(1, from, source.data(), source.size(), b.Key(to, 2), 0, 5), BPS_OK);
    a.Forget();
    b.Forget();
    ASSERT_TRUE(Until(
        a, b, [&] { return a.Count(BPS_EVENT_WRITTEN) == 1; }, 60));
    b.Unreg(to);  // the tail of the write may still be on its way
    a.Unreg(from);
    ASSERT_TRUE(Until(
        a, b, [&] { return b.Count(BPS_EVENT_IMMEDIATE) == 1; }, 60));
    ASSERT_FALSE(a.down(1) || b.down(2));
  }
}

size_t Descriptors() {
  using Folder = std::filesystem::directory_iterator;
  return static_cast<size_t>(std::distance(Folder("/proc/self/fd"), Folder()));
}

// A peer that calls may come too late: the transport that it calls is closed before it learns who that is.
TEST(Tcp, ACallWithoutAnswerLeavesNothingOpen) {
  { Node first; }  // what the provider keeps for the process
  const size_t before = Descriptors();
  int calls = 0;
  // One of two calls the other, by chance.
  for (int round = 0; round < 30; ++round) {
    Node called, caller;
    ASSERT_EQ(caller.Connect(1, 2, called.address()), BPS_OK);
    const size_t alone = Descriptors();
    calls += Until(
        called, caller, [&] { return Descriptors() > alone; }, 0.1);
  }
  EXPECT_GT(calls, 0);
  EXPECT_EQ(Descriptors(), before);
}

TEST(Tcp, ATimeoutThatIsNoNumberIsSaidAndNotUsed) {
  Node node({.config = {{"BYTEPS_PEER_TIMEOUT", "soon"}}});
  EXPECT_NE(node.log().find("BYTEPS_PEER_TIMEOUT=\"soon\""), std::string::npos) << node.log();
}

}  // namespace
}  // namespace byteps::testing
