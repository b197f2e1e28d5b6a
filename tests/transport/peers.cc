// Peers: connected from either side first, many of them, disconnected for good, and back under a new number.

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "tests/transport/transport_test.h"

namespace byteps::testing {
namespace {

// One side connects and sends before the other has connected at all.
TEST_P(TransportTest, EitherSideMayConnectFirst) {
  for (const bool sender_first : {true, false}) {
    SCOPED_TRACE(sender_first);
    Station& a = Open();
    Station& b = Open();
    const Pair pair{&a, a.NewPeer(), &b, b.NewPeer()};
    if (sender_first) {
      a.Connect(pair.to_b, pair.to_a, b.address());
      // May be dropped or kept, must not break anything. (It may also never be accepted before b connects.)
      a.Send(pair.to_b, "too early");
      Settle(20'000'000);
      b.Connect(pair.to_a, pair.to_b, a.address());
    } else {
      b.Connect(pair.to_a, pair.to_b, a.address());
      Settle(20'000'000);
      a.Connect(pair.to_b, pair.to_a, b.address());
    }
    // As the core does: say hello until it is heard.
    for (int attempt = 0; attempt < 10 && b.messages(pair.to_a).empty(); ++attempt) {
      ASSERT_EQ(Post([&] { return a.Send(pair.to_b, "hello"); }), BPS_OK);
      const int64_t patience = world().Now() + 500'000'000;
      Until([&] { return !b.messages(pair.to_a).empty() || world().Now() > patience; });
    }
    ASSERT_FALSE(b.messages(pair.to_a).empty());
    EXPECT_TRUE(Until([&] { return a.outstanding() == 0; }));
    Settle(10'000'000);
    ExpectWorks(pair);
    EXPECT_FALSE(a.down(pair.to_b));
    EXPECT_FALSE(b.down(pair.to_a));
  }
}

TEST_P(TransportTest, SixtyFourPeers) {
  Station& hub = Open();
  std::vector<Pair> pairs;
  for (int i = 0; i < 64; ++i) {
    pairs.push_back(Join(hub, Open()));
    if (HasFatalFailure()) return;
  }
  const size_t size = 16 * 1024;
  std::vector<Memory*> landing, source;
  for (const Pair& pair : pairs) {
    landing.push_back(&hub.NewMemory(size));
    source.push_back(&pair.b->NewMemory(Bytes(size)));
    const std::string key = hub.Key(landing.back()->region, pair.to_b);
    const uint32_t immediate = static_cast<uint32_t>(landing.size() - 1);
    ASSERT_EQ(Post([&] {
                return pair.b->Write(pair.to_a, source.back()->region, source.back()->at(0), size, key, 0, immediate);
              }),
              BPS_OK);
    ASSERT_EQ(Post([&] { return pair.b->Send(pair.to_a, std::to_string(immediate)); }), BPS_OK);
    ASSERT_EQ(Post([&] { return hub.Send(pair.to_b, std::to_string(immediate)); }), BPS_OK);
  }
  ASSERT_TRUE(Until([&] {
    return hub.immediates().size() == pairs.size() && hub.outstanding() == 0 &&
           std::all_of(pairs.begin(), pairs.end(), [&](const Pair& pair) {
             return pair.b->messages(pair.to_a).size() == 2 && hub.messages(pair.to_b).size() == 2;
           });
  }));
  for (size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_TRUE(landing[i]->bytes == source[i]->bytes) << "peer " << i;
    EXPECT_EQ(hub.messages(pairs[i].to_b)[1], std::to_string(i));
    EXPECT_EQ(pairs[i].b->messages(pairs[i].to_a)[1], std::to_string(i));
  }
}

// Slots of one writer: none is written again before its immediate has been seen, since two lanes may write at once, and
// overtake each other.
class SlotWindow {
 public:
  static constexpr size_t kSlotBytes = 32 * 1024;
  explicit SlotWindow(uint32_t slots) : slots_(slots) {}
  size_t size() const { return slots_ * kSlotBytes; }
  bool full() const { return next_ - done_ >= slots_; }
  uint32_t next() const { return next_; }
  uint32_t seen() const { return seen_; }
  size_t offset() const { return next_ % slots_ * kSlotBytes; }
  void Written(bool accepted) { next_ += accepted; }
  void See(uint32_t number) {
    ++seen_;
    early_.insert(number);
    while (early_.erase(done_) != 0) ++done_;
  }

 private:
  const uint32_t slots_;
  uint32_t next_ = 0, seen_ = 0, done_ = 0;  // done: and all before it
  std::set<uint32_t> early_;
};

// A peer that writes all the time is shut out; its neighbour does not notice.
TEST_P(TransportTest, DisconnectIsAFenceAndDisturbsNoOther) {
  Station& hub = Open();
  Station& bad = Open();
  Station& good = Open();
  const Pair to_bad = Join(hub, bad);
  const Pair to_good = Join(hub, good);
  constexpr uint32_t kGood = 1u << 23;  // set in its immediates; 24 bits are promised
  SlotWindow from_bad(64), from_good(8), from_hub(8);
  const size_t slot = SlotWindow::kSlotBytes;
  Memory& window_bad = hub.NewMemory(from_bad.size());
  Memory& window_good = hub.NewMemory(from_good.size());
  Memory& source_bad = bad.NewMemory(slot, std::byte{0x66});
  Memory& source_good = good.NewMemory(Bytes(from_good.size()));
  Memory& source_hub = hub.NewMemory(slot);
  const std::string key_bad = hub.Key(window_bad.region, to_bad.to_b);
  const std::string key_good = hub.Key(window_good.region, to_good.to_b);
  const std::string key_hub = bad.Key(bad.NewMemory(from_hub.size()).region, to_bad.to_a);
  hub.on_immediate = [&](uint32_t immediate) { (immediate >= kGood ? from_good : from_bad).See(immediate & ~kGood); };
  bad.on_immediate = [&](uint32_t immediate) { from_hub.See(immediate); };
  const auto feed_bad = [&] {
    if (bad.down(to_bad.to_a) || bad.outstanding() >= 16 || from_bad.full()) return;
    from_bad.Written(bad.Write(to_bad.to_a, source_bad.region, source_bad.at(0), slot, key_bad, from_bad.offset(),
                               from_bad.next()) == BPS_OK);
  };
  const auto feed = [&] {
    feed_bad();
    if (!from_good.full()) {
      const size_t offset = from_good.offset();
      const int32_t code = good.Write(to_good.to_a, source_good.region, source_good.at(offset), slot, key_good, offset,
                                      kGood | from_good.next());
      EXPECT_TRUE(code == BPS_OK || code == BPS_TRANSPORT_AGAIN) << code;
      from_good.Written(code == BPS_OK);
    }
    if (!from_hub.full()) {
      from_hub.Written(hub.Write(to_bad.to_b, source_hub.region, source_hub.at(0), slot, key_hub, from_hub.offset(),
                                 from_hub.next()) == BPS_OK);
    }
  };
  ASSERT_TRUE(Until([&] {
    feed();
    return from_bad.next() > 20 && from_good.next() > 20;
  }));
  hub.Disconnect(to_bad.to_b);
  ASSERT_TRUE(Until([&] {
    feed_bad();
    return hub.disconnected(to_bad.to_b);
  }));
  // From now on the memory is ours: whatever is still under way must not land in it.
  std::fill(window_bad.bytes.begin(), window_bad.bytes.end(), std::byte{0x99});
  const uint32_t good_before = from_good.seen();
  hub.on_immediate = [&](uint32_t immediate) {
    EXPECT_GE(immediate, kGood) << "an immediate of the disconnected peer";
    from_good.See(immediate & ~kGood);
  };
  ASSERT_TRUE(Until([&] {
    feed();
    return from_good.seen() > good_before + 50;
  }));
  EXPECT_EQ(std::count(window_bad.bytes.begin(), window_bad.bytes.end(), std::byte{0x99}),
            static_cast<ptrdiff_t>(window_bad.bytes.size()));
  ASSERT_TRUE(Until([&] { return good.outstanding() == 0 && from_good.seen() == from_good.next(); }));
  EXPECT_TRUE(window_good.bytes == source_good.bytes);
  EXPECT_FALSE(hub.down(to_good.to_b));
  EXPECT_FALSE(good.down(to_good.to_a));
  hub.on_immediate = nullptr;
  bad.on_immediate = nullptr;
  ExpectWorks(to_good);
}

// A peer that takes nothing: more is under way than any queue between the two holds.
TEST_P(TransportTest, DisconnectCancelsWhatIsUnderWay) {
  Station& a = Open();
  Station& b = Open();
  const Pair pair = Join(a, b);
  constexpr size_t kSize = size_t{8} << 20, kWrites = 4;
  Memory& source = a.NewMemory(kSize);
  Memory& target = b.NewMemory(kSize * kWrites);
  const std::string key = b.Key(target.region, pair.to_a);
  Settle(1'000'000);
  size_t posted = 0;
  for (size_t i = 0; i < kWrites; ++i) {
    posted += a.Write(pair.to_b, source.region, source.at(0), kSize, key, i * kSize, 1) == BPS_OK ? 1 : 0;
    posted += a.Send(pair.to_b, "and a message") == BPS_OK ? 1 : 0;
  }
  ASSERT_GT(posted, 0u);
  const size_t before = a.completed() + a.outstanding();
  a.Disconnect(pair.to_b);
  // Each ends once, with OK or CANCELLED (Station::Audit), without the peer's help.
  const int64_t deadline = world().Now() + int64_t{60'000'000'000};
  while (!a.disconnected(pair.to_b) && world().Now() < deadline) {
    a.Poll();
    world().Pass();
  }
  ASSERT_TRUE(a.disconnected(pair.to_b));
  EXPECT_EQ(a.outstanding(), 0u);
  EXPECT_EQ(a.completed(), before);
  EXPECT_FALSE(a.down(pair.to_b));
}

TEST_P(TransportTest, DisconnectOfAnIdlePeer) {
  const Pair pair = Join();
  pair.a->Disconnect(pair.to_b);
  EXPECT_TRUE(Until([&] { return pair.a->disconnected(pair.to_b); }));
  EXPECT_FALSE(pair.a->down(pair.to_b));
}

TEST_P(TransportTest, APeerComesBackUnderANewNumber) {
  Station& a = Open();
  Station& b = Open();
  for (int life = 0; life < 5; ++life) {
    SCOPED_TRACE(life);
    const Pair pair = Join(a, b);
    if (HasFatalFailure()) return;
    ExpectWorks(pair);
    if (life % 2 == 0) {
      a.Disconnect(pair.to_b);
      b.Disconnect(pair.to_a);
    } else {  // one after the other
      a.Disconnect(pair.to_b);
      ASSERT_TRUE(Until([&] { return a.disconnected(pair.to_b); }));
      b.Disconnect(pair.to_a);
    }
    ASSERT_TRUE(Until([&] { return a.disconnected(pair.to_b) && b.disconnected(pair.to_a); }));
  }
}

}  // namespace
}  // namespace byteps::testing
