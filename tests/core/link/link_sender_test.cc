// What tells of a write and the write itself, through a whole endpoint: their order, whatever the transport refuses.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/link/endpoint.h"
#include "core/wire/landing_table.h"
#include "tests/core/link/endpoint_pair.h"

namespace byteps {
namespace {

using LinkSenderTest = EndpointPair;

// One slot of b, taken by a, and memory of a's to write from.
struct Lent {
  Lent(Side* a, Side* b, size_t bytes) : source(bytes), window(bytes), a_(a), b_(b) {
    EXPECT_TRUE(a->endpoint->transport().Reg(source.data(), bytes, &from).ok());
    EXPECT_TRUE(b->endpoint->transport().Reg(window.data(), bytes, &at).ok());
  }
  ~Lent() {
    a_->endpoint->transport().Unreg(from);
    b_->endpoint->transport().Unreg(at);
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  std::vector<std::byte> source, window;
  bps_region *from = nullptr, *at = nullptr;
  LandingTable table;

 private:
  Side *a_, *b_;
};

// What tells the peer of the write with this number.
struct Told {
  explicit Told(uint64_t round) { body.round = round; }
  Announcement record() const { return {wire::RecordType::kCancel, BytesOf(body)}; }
  wire::RoundBody body{};
};

// Behind it, the record would come late by the time of all its bytes, and of those that are written to others
// meanwhile.
TEST_P(LinkSenderTest, WhatTellsOfALargeWriteGoesBeforeIt) {
  if (GetParam() != 0) GTEST_SKIP() << "where links reorder, what leaves first may come last";
  knobs_.bytes_per_second = 25'000'000;  // and one link for all peers
  auto a = Make(1), b = Make(2), c = Make(3);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  ASSERT_TRUE(a->Add(fabric_.now(), *c).ok());
  ASSERT_TRUE(c->Add(fabric_.now(), *a).ok());
  ASSERT_TRUE(Run({a.get(), b.get(), c.get()}, [&] { return a->ready.size() == 2 && c->ready.size() == 1; }));
  constexpr size_t kBytes = size_t{1} << 20;  // 42 ms of the link
  Lent to_b(a.get(), b.get(), kBytes), to_c(a.get(), c.get(), kBytes);
  ASSERT_TRUE(b->endpoint->Lend(1, to_b.at, 0, kBytes, *to_b.table.TakeRange(1), 1).ok());
  ASSERT_TRUE(c->endpoint->Lend(1, to_c.at, 0, kBytes, *to_c.table.TakeRange(1), 1).ok());
  ASSERT_TRUE(Run({a.get(), b.get(), c.get()},
                  [&] { return a->endpoint->FreeSlots(2) == 1 && a->endpoint->FreeSlots(3) == 1; }));
  EXPECT_EQ(a->endpoint->TakenSlots(2), 0u);
  const Time begin = fabric_.now();
  const Told told(1);
  for (const auto& [peer, lent] : {std::pair{PeerId{2}, &to_b}, std::pair{PeerId{3}, &to_c}}) {
    ASSERT_TRUE(a->endpoint->WriteSlot(peer, {lent->from, lent->source.data()}, kBytes, *a->endpoint->TakeSlot(peer),
                                       peer, told.record()));
  }
  EXPECT_EQ(a->endpoint->TakenSlots(2), 1u);
  ASSERT_TRUE(Run({a.get(), b.get(), c.get()}, [&] { return !b->rounds.empty(); }));
  EXPECT_LT(fabric_.now() - begin, 10 * kMillisecond);
  ASSERT_TRUE(Run({a.get(), b.get(), c.get()}, [&] { return !c->rounds.empty(); }));
  EXPECT_LT(fabric_.now() - begin, 60 * kMillisecond);
  EXPECT_TRUE(c->landed.empty());
  ASSERT_TRUE(Run({a.get(), b.get(), c.get()},
                  [&] { return a->written.size() == 2 && !b->landed.empty() && !c->landed.empty(); }));
  EXPECT_EQ(b->rounds.size(), 1u);
  EXPECT_EQ(c->rounds.size(), 1u);
}

// The record cannot be taken back: what it tells of follows as soon as the transport takes it, and before any other.
TEST_P(LinkSenderTest, AWriteWhoseRecordHasLeftFollowsWhateverTheTransportSaysFirst) {
  auto a = MakeRefusing(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  constexpr size_t kBytes = size_t{64} << 10;
  Lent lent(a.get(), b.get(), 2 * kBytes);
  ASSERT_TRUE(b->endpoint->Lend(1, lent.at, 0, kBytes, *lent.table.TakeRange(2), 2).ok());
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->endpoint->FreeSlots(2) == 2; }));
  const RemoteSlot first = *a->endpoint->TakeSlot(2), second = *a->endpoint->TakeSlot(2);
  std::memset(lent.source.data(), 7, kBytes);
  const Told one(1), two(2);
  const auto write = [&](const RemoteSlot& slot, uint64_t user, const Told& told) {
    return a->endpoint->WriteSlot(2, {lent.from, lent.source.data()}, kBytes, slot, user, told.record());
  };
  refuses_ = Refuses::kWrites;
  ASSERT_TRUE(write(first, 1, one));
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return b->rounds.size() == 1; }));
  EXPECT_FALSE(write(second, 2, two)) << "beside one that waits";
  refuses_ = Refuses::kLargeWrites;
  EXPECT_FALSE(a->endpoint->WriteSlot(2, {lent.from, lent.source.data()}, 1, second, 3)) << "nor a small one";
  EXPECT_FALSE(a->endpoint->Sent());
  EXPECT_TRUE(a->written.empty());
  EXPECT_TRUE(b->landed.empty());
  const int rooms = a->room;
  refuses_ = Refuses::kNothing;
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->written.contains(1) && b->landed.size() == 1; }));
  EXPECT_EQ(a->written[1], BPS_OK);
  EXPECT_EQ(b->landed[0], first.immediate);
  EXPECT_EQ(lent.window[first.offset + kBytes - 1], std::byte{7});
  EXPECT_GT(a->room, rooms) << "the second may go";
  EXPECT_TRUE(a->endpoint->Sent());
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return write(second, 2, two); }));
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->written.size() == 2 && b->landed.size() == 2; }));
  EXPECT_EQ(b->rounds, (std::vector<uint64_t>{1, 2}));
}

// A transport that takes both as one, but not yet: nothing has left meanwhile, and then both go, once.
TEST_P(LinkSenderTest, AWriteAndItsRecordWaitTogether) {
  auto a = MakeRefusing(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  constexpr size_t kBytes = size_t{64} << 10;
  Lent lent(a.get(), b.get(), kBytes);
  ASSERT_TRUE(b->endpoint->Lend(1, lent.at, 0, kBytes, *lent.table.TakeRange(1), 1).ok());
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->endpoint->FreeSlots(2) == 1; }));
  std::memset(lent.source.data(), 7, kBytes);
  refuses_ = Refuses::kTogether;
  const Told told(1);
  ASSERT_TRUE(
      a->endpoint->WriteSlot(2, {lent.from, lent.source.data()}, kBytes, *a->endpoint->TakeSlot(2), 5, told.record()));
  for (int i = 0; i < 100; ++i) {
    a->endpoint->Poll(fabric_.now());
    b->endpoint->Poll(fabric_.now());
    ASSERT_TRUE(a->written.empty() && b->rounds.empty() && b->landed.empty());
  }
  EXPECT_FALSE(a->endpoint->Sent());
  const int logged = a->logged;
  refuses_ = Refuses::kNothing;
  ASSERT_TRUE(Run({a.get(), b.get()},
                  [&] { return a->written.size() == 1 && b->landed.size() == 1 && b->rounds.size() == 1; }));
  EXPECT_EQ(a->written[5], BPS_OK);
  EXPECT_EQ(lent.window[kBytes - 1], std::byte{7});
  EXPECT_TRUE(a->endpoint->Sent());
  EXPECT_EQ(a->logged - logged, 1) << "each message is said, also one that goes with a write";
}

// It ends once, before the fence, as every write does.
TEST_P(LinkSenderTest, AWriteThatWaitsEndsWithItsPeer) {
  options_.peer_timeout = 600 * kSecond;
  enum class End { kRemoved, kDead, kRefused };
  for (const End end : {End::kRemoved, End::kDead, End::kRefused}) {
    SCOPED_TRACE(static_cast<int>(end));
    const uint32_t it = 2 + 2 * static_cast<uint32_t>(end);
    auto a = MakeRefusing(it - 1), b = Make(it);
    ASSERT_TRUE(Connect(a.get(), b.get()));
    constexpr size_t kBytes = size_t{64} << 10;
    Lent lent(a.get(), b.get(), kBytes);
    ASSERT_TRUE(b->endpoint->Lend(it - 1, lent.at, 0, kBytes, *lent.table.TakeRange(1), 1).ok());
    ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->endpoint->FreeSlots(it) == 1; }));
    refuses_ = Refuses::kWrites;
    const Told told(1);
    ASSERT_TRUE(a->endpoint->WriteSlot(it, {lent.from, lent.source.data()}, kBytes, *a->endpoint->TakeSlot(it), 5,
                                       told.record()));
    ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return b->rounds.size() == 1; }));
    switch (end) {
      case End::kRemoved:
        a->endpoint->RemovePeer(it);
        EXPECT_TRUE(a->written.empty()) << "callbacks come within Poll";
        a->endpoint->Poll(fabric_.now());
        EXPECT_EQ(a->written[5], BPS_CANCELLED);
        EXPECT_TRUE(Run({a.get(), b.get()}, [&] { return a->removed.size() == 1; }));
        EXPECT_TRUE(a->down.empty());
        break;
      case End::kDead:
        fabric_.Kill("node" + std::to_string(it));
        a->Cancel(it, 2);  // what is posted makes the transport see the death
        ASSERT_TRUE(Run({a.get()}, [&] { return a->down.contains(it) && a->written.contains(5); }));
        EXPECT_EQ(a->written[5], BPS_UNAVAILABLE);
        break;
      case End::kRefused:
        refuses_ = Refuses::kWritesForGood;
        ASSERT_TRUE(Run({a.get()}, [&] { return a->down.contains(it) && a->written.contains(5); }));
        EXPECT_EQ(a->written[5], BPS_UNAVAILABLE);
        EXPECT_EQ(std::string(a->down[it].message()), "writing 65536 bytes to member " + std::to_string(it) +
                                                          " failed: the transport answered UNAVAILABLE");
        break;
    }
    EXPECT_EQ(a->written.size(), 1u);
    EXPECT_TRUE(b->landed.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LinkSenderTest, kSeeds);

}  // namespace
}  // namespace byteps
