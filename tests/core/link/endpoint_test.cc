#include "core/link/endpoint.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/wire/landing_table.h"
#include "core/wire/message.h"
#include "tests/core/link/endpoint_pair.h"

namespace byteps {
namespace {

using EndpointTest = EndpointPair;

TEST_P(EndpointTest, BothSidesBecomeReadyWhicheverConnectsFirst) {
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

TEST_P(EndpointTest, RemovalEndsWritesAndDisturbsNoOther) {
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

INSTANTIATE_TEST_SUITE_P(Seeds, EndpointTest, kSeeds);

}  // namespace
}  // namespace byteps
