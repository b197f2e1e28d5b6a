#include "core/link/endpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/wire/landing_table.h"
#include "core/wire/message.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {
namespace {

constexpr uint64_t kSession = 42;

// One side: an endpoint on a node of the fabric that writes down what its handler hears.
class Side : public EndpointHandler {
 public:
  Side(sim::SimFabric* fabric, const std::string& node, EndpointOptions options, uint32_t member,
       const sim::EndpointOptions& knobs)
      : Side(Opened(fabric->Open(node, knobs)), std::move(options), member) {}
  Side(Transport transport, EndpointOptions options, uint32_t member) : member_(member) {
    address = *transport.Address();
    endpoint = std::make_unique<Endpoint>(std::move(transport), std::move(options), this, &log);
  }

  absl::Status Add(Time now, const Side& other, const std::string& nonce = "nonce") {
    PeerSpec spec;
    spec.session = kSession;
    spec.epoch = 1;
    spec.session_nonce = nonce;
    spec.own_member = member_;
    spec.member = other.member_;
    spec.address = other.address;
    spec.description = "member " + std::to_string(other.member_);
    spec.id = other.member_;
    spec.local_id = member_;
    return endpoint->AddPeer(now, spec);
  }

  void OnReady(PeerId peer) override { ready.push_back(peer); }
  void OnRecord(PeerId, wire::RecordType, std::span<const std::byte> body) override {
    wire::RoundBody round;
    ASSERT_TRUE(ReadStruct(body, &round));
    rounds.push_back(round.round);
    if (on_record) on_record();
  }
  void OnLanded(uint32_t immediate) override { landed.push_back(immediate); }
  void OnWritten(PeerId peer, uint64_t user, int32_t code) override {
    EXPECT_FALSE(written.contains(user)) << "ended twice";
    EXPECT_FALSE(std::count(removed.begin(), removed.end(), peer)) << "behind the fence";
    written[user] = code;
  }
  void OnRoom(PeerId) override { ++room; }
  void OnPeerDown(PeerId peer, const absl::Status& why) override {
    EXPECT_FALSE(down.contains(peer)) << "said twice";
    down[peer] = why;
  }
  void OnRemoved(PeerId peer) override { removed.push_back(peer); }

  void Cancel(PeerId peer, uint64_t round, size_t text = 0) {
    wire::RoundBody body{};
    body.round = round;
    endpoint->Send(peer, wire::RecordType::kCancel, BytesOf(body), std::vector<std::byte>(text));
  }

  // What PS_VERBOSE=2 tells of messages that have left.
  int logged = 0;
  Logger log{{.level = LogLevel::kInfo, .verbose = 2, .sink = Count, .user = this}};
  std::string address;
  std::unique_ptr<Endpoint> endpoint;
  std::vector<PeerId> ready, removed;
  std::vector<uint64_t> rounds;
  std::vector<uint32_t> landed;
  std::map<uint64_t, int32_t> written;
  std::map<PeerId, absl::Status> down;
  std::function<void()> on_record;
  int room = 0;

 private:
  static void Count(void* user, int32_t, const char*, int32_t, const char* message) {
    if (std::string_view(message).find("message to ") != std::string_view::npos) ++static_cast<Side*>(user)->logged;
  }

  static Transport Opened(const sim::SimTransport& opened) { return Transport::Adopt(opened.table, opened.transport); }

  uint32_t member_;
};

class EndpointTest : public testing::TestWithParam<uint64_t> {
 protected:
  EndpointTest() : fabric_(Options(GetParam())) {
    options_.session = kSession;
    options_.hello_interval = 10 * kMillisecond;
    options_.hello_timeout = 10 * kSecond;
    options_.ping_interval = kSecond;
    options_.peer_timeout = 4 * kSecond;
    options_.token = "secret";
    knobs_ = GetParam() == 0 ? sim::EndpointOptions{} : sim::AdverseEndpoint(fabric_.random());
  }

  static sim::FabricOptions Options(uint64_t seed) {
    sim::FabricOptions options;
    options.seed = sim::SeedOr(seed);
    sim::Random random(seed);
    if (seed != 0) options.link = sim::AdverseLink(random);
    return options;
  }

  std::unique_ptr<Side> Make(uint32_t member) {
    return std::make_unique<Side>(&fabric_, "node" + std::to_string(member), options_, member, knobs_);
  }

  // Polls all sides, 20 us apart (1 ms when nothing happens), until `done` or the deadline.
  template <typename Done>
  bool Run(std::initializer_list<Side*> sides, Done done, Time limit = 60 * kSecond) {
    const Time end = fabric_.now() + limit;
    int idle = 0;
    while (fabric_.now() < end) {
      ++idle;
      for (Side* side : sides) {
        if (side->endpoint->Poll(fabric_.now())) idle = 0;
      }
      if (done()) return true;
      bool ticked = false;
      const Time pause = idle > 100 ? kMillisecond : 20 * sim::kMicrosecond;
      fabric_.Timer(fabric_.now() + pause, [&ticked] { ticked = true; });
      while (!ticked) fabric_.Step();
    }
    return false;
  }

  // Like Make, but its transport refuses what `Refuses` says as if every peer were lost.
  enum class Refuses {
    kNothing,
    kMessages,
    kKeys,
    kWrites,
    kLargeWrites,
    kWritesForGood,
    kTogether
  };  // kWrites: for now
  std::unique_ptr<Side> MakeRefusing(uint32_t member) {
    static bps_transport_table honest, refusing;
    const sim::SimTransport opened = fabric_.Open("node" + std::to_string(member), knobs_);
    honest = refusing = *opened.table;
    refuses_ = Refuses::kNothing;
    refusing.post_send = [](bps_transport* transport, bps_peer peer, const void* data, size_t size, uint64_t user) {
      return refuses_ == Refuses::kMessages ? BPS_UNAVAILABLE : honest.post_send(transport, peer, data, size, user);
    };
    refusing.export_key = [](bps_transport* transport, bps_region* region, bps_peer peer, void* key) {
      return refuses_ == Refuses::kKeys ? BPS_UNAVAILABLE : honest.export_key(transport, region, peer, key);
    };
    refusing.post_write = [](bps_transport* transport, bps_peer peer, const bps_local* from, size_t size,
                             const bps_remote* to, uint32_t immediate, uint64_t user) {
      if (refuses_ == Refuses::kWrites || (refuses_ == Refuses::kLargeWrites && size > 1)) return BPS_TRANSPORT_AGAIN;
      if (refuses_ == Refuses::kWritesForGood) return BPS_UNAVAILABLE;
      return honest.post_write(transport, peer, from, size, to, immediate, user);
    };
    refusing.poll = [](bps_transport* transport, bps_event* events, size_t capacity) {
      const size_t count = honest.poll(transport, events, capacity);
      for (size_t i = 0; i < count && !why_.empty(); ++i) {
        if (events[i].type != BPS_EVENT_PEER_DOWN) continue;
        events[i].data = why_.data();
        events[i].size = why_.size();
      }
      return count;
    };
    refusing.post_send_and_write = [](bps_transport* transport, bps_peer peer, const void* message, size_t message_size,
                                      const bps_local* from, size_t size, const bps_remote* to, uint32_t immediate,
                                      uint64_t user) -> int32_t {
      if (refuses_ == Refuses::kTogether) return BPS_TRANSPORT_AGAIN;
      if (refuses_ == Refuses::kWritesForGood || refuses_ == Refuses::kMessages) return BPS_UNAVAILABLE;
      if (refuses_ != Refuses::kNothing) return BPS_UNIMPLEMENTED;
      return honest.post_send_and_write(transport, peer, message, message_size, from, size, to, immediate, user);
    };
    return std::make_unique<Side>(Transport::Adopt(&refusing, opened.transport), options_, member);
  }

  bool Connect(Side* a, Side* b) {
    EXPECT_TRUE(a->Add(fabric_.now(), *b).ok());
    EXPECT_TRUE(b->Add(fabric_.now(), *a).ok());
    return Run({a, b}, [&] { return a->ready.size() == 1 && b->ready.size() == 1; });
  }

  static inline Refuses refuses_;
  static inline std::string_view why_;  // what the transport of MakeRefusing says of whom it has lost
  sim::SimFabric fabric_;
  EndpointOptions options_;
  sim::EndpointOptions knobs_;
};

TEST_P(EndpointTest, BothSidesBecomeReadyWhoeverConnectsFirst) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(a->Add(fabric_.now(), *b).ok());
  // The other side comes much later: HELLOs in between are lost.
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->ready.empty(); }, 3 * kSecond));
  ASSERT_TRUE(b->Add(fabric_.now(), *a).ok());
  EXPECT_TRUE(Run(
      {a.get(), b.get()}, [&] { return !a->ready.empty() && !b->ready.empty(); }, 2 * kSecond));
  EXPECT_TRUE(a->down.empty() && b->down.empty());
}

TEST_P(EndpointTest, RecordsArriveOnceAndInOrderFarBeyondThePool) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  constexpr uint64_t kRecords = 2000;
  for (uint64_t i = 0; i < kRecords; ++i) {
    a->Cancel(2, i, (i * 37) % 4000);
    b->Cancel(1, i, (i * 53) % 4000);
  }
  EXPECT_TRUE(Run({a.get(), b.get()}, [&] { return a->rounds.size() == kRecords && b->rounds.size() == kRecords; }));
  for (uint64_t i = 0; i < kRecords; ++i) {
    ASSERT_EQ(a->rounds[i], i);
    ASSERT_EQ(b->rounds[i], i);
  }
  EXPECT_TRUE(a->down.empty() && b->down.empty());
}

TEST_P(EndpointTest, ASlowReaderHoldsTheSenderBackAndLosesNothing) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  for (uint64_t i = 0; i < 500; ++i) a->Cancel(2, i, 8000);
  // b does not poll; the fabric would stop the run if a overran b's receive pool.
  Run(
      {a.get()}, [] { return false; }, 2 * kSecond);
  EXPECT_GT(a->endpoint->Queued(2), 0u);
  EXPECT_FALSE(a->endpoint->Sent());
  EXPECT_TRUE(Run({a.get(), b.get()}, [&] { return b->rounds.size() == 500; }));
  EXPECT_TRUE(Run({a.get(), b.get()}, [&] { return a->endpoint->Sent(); }));
}

TEST_P(EndpointTest, SlotsGoBackAndForth) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  constexpr uint32_t kSlots = 4;
  constexpr uint64_t kBytes = 4096;
  std::vector<std::byte> window(kSlots * kBytes);
  bps_region* region = nullptr;
  ASSERT_TRUE(b->endpoint->transport().Reg(window.data(), window.size(), &region).ok());
  LandingTable table;
  const uint32_t first = *table.TakeRange(kSlots);
  ASSERT_TRUE(b->endpoint->Lend(1, region, 0, kBytes, first, kSlots).ok());
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->endpoint->FreeSlots(2) == kSlots; }));

  constexpr uint64_t kWrites = 300;
  std::vector<std::byte> source(kBytes);
  bps_region* source_region = nullptr;
  ASSERT_TRUE(a->endpoint->transport().Reg(source.data(), source.size(), &source_region).ok());
  for (uint64_t i = 0; i < kWrites; ++i) {
    ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->endpoint->FreeSlots(2) > 0; })) << i;
    const RemoteSlot slot = *a->endpoint->TakeSlot(2);
    std::memset(source.data(), static_cast<int>(i), source.size());
    ASSERT_TRUE(Run({a.get(), b.get()}, [&] {
      return a->endpoint->WriteSlot(2, {source_region, source.data()}, kBytes, slot, i);
    }));
    ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->written.contains(i) && b->landed.size() == i + 1; }));
    EXPECT_EQ(a->written[i], BPS_OK);
    EXPECT_EQ(b->landed[i], slot.immediate);
    ASSERT_TRUE(table.Valid(slot.immediate));
    EXPECT_EQ(window[(wire::ImmediateSlot(slot.immediate) - first) * kBytes + kBytes - 1], static_cast<std::byte>(i));
    b->endpoint->Return(1, table.Renew(slot.immediate));
  }
  EXPECT_TRUE(Run({a.get(), b.get()}, [&] { return a->endpoint->FreeSlots(2) == kSlots; }));
  a->endpoint->transport().Unreg(source_region);
  b->endpoint->transport().Unreg(region);
}

// What b says below its endpoint, as a defect or an enemy would. Both sides are ready.
struct Liar {
  static wire::LeaseBody Lease(uint32_t first, uint32_t slots) {
    wire::LeaseBody body{};
    body.slot_bytes = 4096;
    body.first_slot = first;
    body.slots = slots;
    return body;
  }
  static std::vector<std::byte> Return(std::initializer_list<uint32_t> immediates) {
    const wire::ReturnBody body{static_cast<uint32_t>(immediates.size()), 0};
    std::vector<std::byte> bytes(sizeof body + 4 * immediates.size());
    std::memcpy(bytes.data(), &body, sizeof body);
    std::memcpy(bytes.data() + sizeof body, immediates.begin(), 4 * immediates.size());
    return bytes;
  }
};

TEST_P(EndpointTest, LeasesThatWrapOverlapOrExceedEndTheLink) {
  const std::pair<uint32_t, uint32_t> wrong[] = {{0xffffffffu, 2},
                                                 {0xffffffffu, 1},
                                                 {1u << wire::kSlotBits, 1},
                                                 {(1u << wire::kSlotBits) - 1, 2},
                                                 {0, 0xffffffffu},
                                                 {3, 4},
                                                 {6, 1},
                                                 {0, 8}};
  for (const auto& [first, slots] : wrong) {
    SCOPED_TRACE(std::to_string(first) + ", " + std::to_string(slots));
    auto a = Make(1), b = Make(2);
    ASSERT_TRUE(Connect(a.get(), b.get()));
    b->endpoint->Send(1, wire::RecordType::kLease, BytesOf(Liar::Lease(4, 4)));
    b->endpoint->Send(1, wire::RecordType::kLease, BytesOf(Liar::Lease(first, slots)));
    ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->down.contains(2); }));
    EXPECT_NE(a->down[2].message().find("broke the protocol: LEASE"), absl::string_view::npos) << a->down[2];
  }
}

TEST_P(EndpointTest, ASlotThatIsFreeIsNotReturned) {
  for (const int twice : {0, 1}) {
    auto a = Make(1), b = Make(2);
    ASSERT_TRUE(Connect(a.get(), b.get()));
    b->endpoint->Send(1, wire::RecordType::kLease, BytesOf(Liar::Lease(4, 2)));
    ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->endpoint->FreeSlots(2) == 2; }));
    const uint32_t taken = a->endpoint->TakeSlot(2)->immediate;
    if (twice == 1) {
      b->endpoint->Send(1, wire::RecordType::kReturn, Liar::Return({taken, taken}));
    } else {
      b->endpoint->Send(1, wire::RecordType::kReturn, Liar::Return({wire::Immediate(taken == 4 ? 5 : 4, 0)}));
    }
    ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->down.contains(2); }));
    EXPECT_NE(a->down[2].message().find("which was not taken"), absl::string_view::npos) << a->down[2];
  }
}

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

// Behind it, the record would come late by the time of all its bytes, and of those that are written to others meanwhile.
TEST_P(EndpointTest, WhatTellsOfALargeWriteGoesBeforeIt) {
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
TEST_P(EndpointTest, AWriteWhoseRecordHasLeftFollowsWhateverTheTransportSaysFirst) {
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
TEST_P(EndpointTest, AWriteAndItsRecordWaitTogether) {
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
TEST_P(EndpointTest, AWriteThatWaitsEndsWithItsPeer) {
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

TEST_P(EndpointTest, AnotherTokenIsRefused) {
  auto a = Make(1);
  options_.token = "guess";
  auto b = Make(2);
  ASSERT_TRUE(a->Add(fabric_.now(), *b).ok());
  ASSERT_TRUE(b->Add(fabric_.now(), *a).ok());
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->down.contains(2); }));
  EXPECT_EQ(a->down[2].code(), absl::StatusCode::kUnauthenticated) << a->down[2];
  EXPECT_NE(a->down[2].message().find("member 2"), absl::string_view::npos) << a->down[2];
  EXPECT_TRUE(a->ready.empty());
}

TEST_P(EndpointTest, AnotherSessionsNonceIsRefused) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(a->Add(fabric_.now(), *b, "nonce of this session").ok());
  ASSERT_TRUE(b->Add(fabric_.now(), *a, "nonce of an earlier one").ok());
  ASSERT_TRUE(Run({a.get(), b.get()}, [&] { return a->down.contains(2); }));
  EXPECT_EQ(a->down[2].code(), absl::StatusCode::kUnauthenticated) << a->down[2];
}

TEST_P(EndpointTest, APeerThatNeverAnswersIsNamedAtTheDeadline) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(a->Add(fabric_.now(), *b).ok());
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 11 * kSecond));
  EXPECT_EQ(a->down[2].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(a->down[2].message().find("member 2"), absl::string_view::npos) << a->down[2];
}

TEST_P(EndpointTest, AnIdleLinkLivesAndASilentPeerDies) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
  const Time stopped = fabric_.now();
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 10 * kSecond));
  EXPECT_LE(fabric_.now() - stopped, 6 * kSecond);
  EXPECT_GE(fabric_.now() - stopped, 2 * kSecond) << a->down[2];
  EXPECT_EQ(a->down[2].code(), absl::StatusCode::kUnavailable);
}

// As long as the heartbeat of the configuration is, a peer is asked before its silence counts.
TEST_P(EndpointTest, AnIdleLinkLivesWithAHeartbeatThatIsSlowerThanThePatience) {
  options_.ping_interval = 10 * options_.peer_timeout;
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 60 * kSecond));
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 6 * kSecond));
}

// Neither without heartbeats nor with a patience for ever is silence a death, and then nothing wakes anybody.
TEST_P(EndpointTest, SilenceIsNoDeathWhereNobodyAsks) {
  for (const bool asks : {false, true}) {
    SCOPED_TRACE(asks);
    options_.ping_interval = asks ? kSecond : 0;
    options_.peer_timeout = asks ? 0 : 4 * kSecond;
    const uint32_t it = asks ? 4 : 2;
    auto a = Make(it - 1), b = Make(it);
    ASSERT_TRUE(Connect(a.get(), b.get()));
    EXPECT_FALSE(Run(
        {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
    EXPECT_FALSE(Run(
        {a.get()}, [&] { return !a->down.empty(); }, 20 * kSecond));
    EXPECT_EQ(a->endpoint->NextTimer(), kNever);
  }
}

// Whose configuration says so asks, and is answered by one that never does.
TEST_P(EndpointTest, OneSideMayAskAndTheOtherNot) {
  auto a = Make(1);
  options_.ping_interval = 0;
  auto b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
  EXPECT_FALSE(Run(
      {b.get()}, [&] { return !b->down.empty(); }, 3 * kSecond));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
  EXPECT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 6 * kSecond));
}

// A container that was paused, a job that was stopped and goes on: all have been silent, and nobody has died.
TEST_P(EndpointTest, WhoHasSleptHimselfAsksBeforeHeCallsAnybodyDead) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  EXPECT_FALSE(Run(
      {}, [] { return false; }, 20 * kSecond));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
  EXPECT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 6 * kSecond));
}

TEST_P(EndpointTest, ADeadNodeIsToldOnce) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  fabric_.Kill("node2");
  a->Cancel(2, 1);
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 10 * kSecond));
  a->Cancel(2, 2);
  a->endpoint->RemovePeer(2);
  EXPECT_TRUE(Run(
      {a.get()}, [&] { return a->removed.size() == 1; }, kSecond));
}

// Between the loss and the word of it the transport refuses the peer: the error is the word's.
TEST_P(EndpointTest, WhoIsLostBeforeHeIsWrittenToIsNamedWithTheCause) {
  options_.peer_timeout = 600 * kSecond;
  for (const bool lend : {false, true}) {
    SCOPED_TRACE(lend);
    const uint32_t it = lend ? 4 : 2;
    auto a = MakeRefusing(it - 1), b = Make(it);
    ASSERT_TRUE(Connect(a.get(), b.get()));
    std::vector<std::byte> window(4096);
    bps_region* region = nullptr;
    ASSERT_TRUE(a->endpoint->transport().Reg(window.data(), window.size(), &region).ok());
    // What a has posted makes its transport see the death; a does not look.
    for (uint64_t i = 0; i < 3; ++i) a->Cancel(it, i);
    a->endpoint->Poll(fabric_.now());
    fabric_.Kill("node" + std::to_string(it));
    Run(
        {}, [] { return false; }, 10 * kSecond);
    if (lend) {
      refuses_ = Refuses::kKeys;
      EXPECT_TRUE(a->endpoint->Lend(it, region, 0, window.size(), 0, 1).ok());
    } else {
      a->Cancel(it, 3);
    }
    ASSERT_TRUE(Run(
        {a.get()}, [&] { return a->down.contains(it); }, 500 * kMillisecond));
    EXPECT_EQ(a->down[it].message(), "the connection to member " + std::to_string(it) +
                                         " is lost: it has ended, or left, or the network has failed");
    a->endpoint->transport().Unreg(region);
  }
}

TEST_P(EndpointTest, WhatTheTransportSaysOfALossIsInTheError) {
  auto a = MakeRefusing(1), b = Make(2);
  why_ = "broke off: Connection reset by peer";
  ASSERT_TRUE(Connect(a.get(), b.get()));
  fabric_.Kill("node2");
  a->Cancel(2, 1);
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 3 * kSecond));
  why_ = {};
  EXPECT_EQ(a->down[2].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(a->down[2].message(), "the connection to member 2 is lost: it broke off: Connection reset by peer");
}

// A transport that does not keep its word is not waited for.
TEST_P(EndpointTest, WhoIsRefusedWithoutAWordIsLostAllTheSame) {
  auto a = MakeRefusing(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  refuses_ = Refuses::kMessages;
  a->Cancel(2, 1);
  ASSERT_TRUE(Run(
      {a.get(), b.get()}, [&] { return a->down.contains(2); }, 2 * kSecond));
  EXPECT_EQ(std::string(a->down[2].message()), "sending to member 2 failed: the transport answered UNAVAILABLE");
}

TEST_P(EndpointTest, RemovalEndsWritesAndDisturbsNobodyElse) {
  auto a = Make(1), b = Make(2), c = Make(3);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  ASSERT_TRUE(a->Add(fabric_.now(), *c).ok());
  ASSERT_TRUE(c->Add(fabric_.now(), *a).ok());
  ASSERT_TRUE(Run({a.get(), b.get(), c.get()}, [&] { return a->ready.size() == 2 && c->ready.size() == 1; }));
  for (uint64_t i = 0; i < 100; ++i) {
    a->Cancel(2, i);
    a->Cancel(3, i);
  }
  a->endpoint->RemovePeer(2);
  ASSERT_TRUE(Run({a.get(), b.get(), c.get()}, [&] { return a->removed.size() == 1 && c->rounds.size() == 100; }));
  EXPECT_TRUE(a->down.empty());
}

TEST_P(EndpointTest, TheHandlerMayRemoveThePeerWhoseRecordItReads) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  b->on_record = [&] { b->endpoint->RemovePeer(1); };
  for (uint64_t i = 0; i < 10; ++i) a->Cancel(2, i);
  EXPECT_TRUE(Run({a.get(), b.get()}, [&] { return b->removed.size() == 1; }));
  EXPECT_EQ(b->rounds.size(), 1u);
}

// 0: a well-behaved network; the others as bad as the contract allows.
INSTANTIATE_TEST_SUITE_P(Seeds, EndpointTest, testing::Range<uint64_t>(0, 12));

}  // namespace
}  // namespace byteps
