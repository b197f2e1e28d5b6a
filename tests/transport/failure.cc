// Failure: a dead peer is said once, after the end of all that was under way to it, and takes no other with it.

#include <algorithm>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "tests/transport/transport_test.h"

namespace byteps::testing {
namespace {

TEST_P(TransportTest, ADeadPeerIsSaidOnceAndPostsToItAreRefused) {
  Station& a = Open();
  Station& victim = Open();
  Station& other = Open();
  const Pair to_victim = Join(a, victim);
  const Pair to_other = Join(a, other);
  Memory& source = a.NewMemory(4096);
  const std::string key = victim.Key(victim.NewMemory(4096).region, to_victim.to_a);
  victim.Die();
  // Whether the other side notices without traffic is up to the transport: the core pings.
  int32_t code = BPS_OK;
  ASSERT_TRUE(Until([&] {
    if (a.outstanding(to_victim.to_b) < 4 && !a.down(to_victim.to_b)) code = a.Send(to_victim.to_b, "are you there?");
    return a.down(to_victim.to_b);
  }));
  Settle(20'000'000);
  EXPECT_EQ(a.Send(to_victim.to_b, "hello?"), BPS_UNAVAILABLE);
  EXPECT_EQ(a.Write(to_victim.to_b, source.region, source.at(0), 4096, key, 0, 1), BPS_UNAVAILABLE);
  code = a.SendAndWrite(to_victim.to_b, "hello?", source.region, source.at(0), 4096, key, 0, 1);
  EXPECT_TRUE(code == BPS_UNAVAILABLE || code == BPS_UNIMPLEMENTED) << code;
  EXPECT_EQ(a.outstanding(), 0u);
  ExpectWorks(to_other);
  // The fence also stands for who is down.
  a.Disconnect(to_victim.to_b);
  EXPECT_TRUE(Until([&] { return a.disconnected(to_victim.to_b); }));
  ExpectWorks(to_other);
}

TEST_P(TransportTest, PeersThatDieAtRandomPoints) {
  Station& hub = Open();
  Station& steady = Open();
  const Pair to_steady = Join(hub, steady);
  const size_t slot = 64 * 1024, most = 60;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    Station& victim = Open();
    const Pair pair = Join(hub, victim);
    if (HasFatalFailure()) return;
    Memory& landing = hub.NewMemory(slot * most);
    Memory& source = hub.NewMemory(Bytes(slot));
    Memory& there = victim.NewMemory(slot * most);
    Memory& its_source = victim.NewMemory(Bytes(slot));
    const std::string to_there = victim.Key(there.region, pair.to_a);
    const std::string to_landing = hub.Key(landing.region, pair.to_b);
    const uint64_t moment = random()() % most;
    size_t sent = 0, base = victim.messages(pair.to_a).size();
    for (uint64_t i = 0; i < moment; ++i) {
      if (sent - (victim.messages(pair.to_a).size() - base) < 8 && hub.Send(pair.to_b, Text(2000)) == BPS_OK) ++sent;
      hub.Write(pair.to_b, source.region, source.at(0), slot, to_there, i * slot, 1);
      victim.Write(pair.to_a, its_source.region, its_source.at(0), slot, to_landing, i * slot, 2);
      hub.Poll(3);
      victim.Poll(3);
      world().Pass();
    }
    victim.Die();
    ASSERT_TRUE(Until([&] {
      if (hub.outstanding(pair.to_b) < 4 && !hub.down(pair.to_b)) hub.Send(pair.to_b, "are you there?");
      return hub.down(pair.to_b);
    }));
    EXPECT_EQ(hub.outstanding(pair.to_b), 0u);
    hub.Disconnect(pair.to_b);
    ASSERT_TRUE(Until([&] { return hub.disconnected(pair.to_b); }));
    hub.Unregister(landing.region);
    ExpectWorks(to_steady);
  }
}

TEST_P(TransportTest, CloseEndsWhatIsUnderWay) {
  for (int round = 0; round < 5; ++round) {
    SCOPED_TRACE(round);
    Station& a = Open();
    Station& b = Open();
    const Pair pair = Join(a, b);
    const size_t slot = 256 * 1024;
    Memory& target = b.NewMemory(slot * 4);
    const std::string key = b.Key(target.region, pair.to_a);
    {
      std::vector<std::byte> source = Bytes(slot * 4);
      bps_region* region = a.Register(source.data(), source.size());
      for (uint32_t i = 0; i < 4; ++i) {
        a.Write(pair.to_b, region, source.data() + i * slot, slot, key, i * slot, i);
        a.Send(pair.to_b, "on the way");
      }
      if (round % 2 == 1) a.Poll();
      a.Close();
    }  // the source is gone
    // The other side survives it, and can be closed any time.
    for (int i = 0; i < round; ++i) {
      b.Poll();
      world().Pass();
    }
    b.Close();
  }
}

}  // namespace
}  // namespace byteps::testing
