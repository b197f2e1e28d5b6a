#include "server/reducer/round.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "abi/byteps.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr RoundState kStates[] = {RoundState::kGathering, RoundState::kAwaitingMemory, RoundState::kRecalling,
                                  RoundState::kOver, RoundState::kFailed};

wire::DataHeader Header() {
  wire::DataHeader header{};
  header.key = 0x50000;
  header.round = 7;
  header.elements = 10;
  header.parts = 3;
  header.part = 1;
  header.dtype = BPS_FLOAT32;
  header.wire_dtype = BPS_FLOAT32;
  header.rank = 2;
  header.timeout_ms = 5;
  header.memory.key_size = 8;
  return header;
}

TEST(RoundTest, OnlyTheDrawnArrowsExist) {
  const std::pair<RoundState, RoundState> arrows[] = {
      {RoundState::kGathering, RoundState::kAwaitingMemory}, {RoundState::kAwaitingMemory, RoundState::kRecalling},
      {RoundState::kRecalling, RoundState::kOver},           {RoundState::kGathering, RoundState::kOver},
      {RoundState::kGathering, RoundState::kFailed},         {RoundState::kAwaitingMemory, RoundState::kFailed},
      {RoundState::kRecalling, RoundState::kFailed},
  };
  for (RoundState from : kStates) {
    EXPECT_STRNE(RoundStateName(from), "unknown");
    for (RoundState to : kStates) {
      const bool drawn = std::find(std::begin(arrows), std::end(arrows), std::pair(from, to)) != std::end(arrows);
      EXPECT_EQ(RoundMayMove(from, to), drawn) << RoundStateName(from) << " -> " << RoundStateName(to);
    }
  }
  const Contributors two(2);
  Round round;
  round.Begin(0, nullptr, nullptr, Header(), two);
  round.Move(RoundState::kOver);
  EXPECT_THROW(round.Move(RoundState::kAwaitingMemory), std::logic_error);
}

TEST(RoundTest, CountsAndDescribes) {
  const Contributors four(4), two(2);
  Round round;
  round.Begin(5, nullptr, nullptr, Header(), four);
  EXPECT_EQ(round.bytes(), 40u);
  EXPECT_EQ(round.contributors(), 4u);
  EXPECT_FALSE(round.all_announced());
  EXPECT_EQ(round.deadline(), kNever);
  round.ShortenDeadline(100);
  round.ShortenDeadline(200);
  EXPECT_EQ(round.deadline(), 100);
  // What is the first sender's own does not become the round's.
  EXPECT_EQ(round.header().rank, 4u);
  EXPECT_EQ(round.header().timeout_ms, 0u);
  EXPECT_EQ(round.header().memory.key_size, 0u);
  round.SetState(0, ContributionState::kInSlot);
  round.SetState(1, ContributionState::kParked);
  round.SetState(3, ContributionState::kDropped);
  EXPECT_EQ(round.prefix(), 2u);
  EXPECT_EQ(round.Describe(), "round 7 of part 1 of key 50000 gathering: 1 absent 1 in slot 1 parked 1 dropped");
  round.SetState(2, ContributionState::kComing);
  EXPECT_TRUE(round.all_announced());
  round.End();
  // Used again, it knows nothing of its former life.
  round.Begin(6, nullptr, nullptr, Header(), two);
  EXPECT_EQ(round.count(ContributionState::kAbsent), 2u);
  EXPECT_EQ(round.count(ContributionState::kComing), 0u);
  EXPECT_EQ(round.deadline(), kNever);
}

TEST(RoundTest, ABroadcastFoldsItsRootAlone) {
  wire::DataHeader header = Header();
  header.operation = wire::Operation::kBroadcast;
  header.root = 2;
  header.dtype = BPS_FLOAT16;
  const Contributors grouped(4, {2, 2});
  Round round;
  round.Begin(0, nullptr, nullptr, header, grouped);
  EXPECT_TRUE(round.broadcast());
  EXPECT_EQ(round.first(), 2u);
  EXPECT_EQ(round.last(), 3u);
  EXPECT_EQ(round.elements(), 20u);
  EXPECT_EQ(round.reduction().dtype, static_cast<uint32_t>(BPS_INT8));
  EXPECT_TRUE(round.groups().empty());
}

// The sets contribute what they have folded; an average is over all workers all the same.
TEST(RoundTest, SetsOfWorkersContributeAsOne) {
  control::Epoch epoch;
  for (int rank = 0; rank < 4; ++rank) epoch.add_workers()->set_rank(rank);
  for (const uint32_t size : {2u, 1u, 1u}) {
    epoch.add_group_sizes(size);
    epoch.add_local_sizes(size);
  }
  const Contributors sets = *Contributors::Make(epoch);
  Round round;
  round.Begin(0, nullptr, nullptr, Header(), sets);
  EXPECT_EQ(round.contributors(), 3u);
  EXPECT_EQ(round.last(), 3u);
  EXPECT_TRUE(round.groups().empty());
  EXPECT_EQ(round.reduction().divisor, 4u);
  round.End();
  wire::DataHeader header = Header();
  header.operation = wire::Operation::kBroadcast;
  header.root = 2;
  round.Begin(0, nullptr, nullptr, header, sets);
  EXPECT_EQ(round.first(), 1u);
  EXPECT_EQ(round.last(), 2u);
}

TEST(RoundTest, RequestsAreComparedAndTold) {
  const wire::DataHeader header = Header();
  wire::DataHeader other = header;
  other.rank = 1;
  other.timeout_ms = 9;
  other.memory = {};
  EXPECT_TRUE(SameRequest(header, other));
  EXPECT_EQ(DescribeRequest(header, {}), "push_pull (sum) of float32, part 1 of 3 with 10 elements");
  for (auto change : {+[](wire::DataHeader* h) { ++h->key; }, +[](wire::DataHeader* h) { ++h->fingerprint; },
                      +[](wire::DataHeader* h) { ++h->offset; }, +[](wire::DataHeader* h) { ++h->elements; },
                      +[](wire::DataHeader* h) { ++h->parts; }, +[](wire::DataHeader* h) { ++h->dtype; },
                      +[](wire::DataHeader* h) { ++h->root; }, +[](wire::DataHeader* h) { ++h->reduction; },
                      +[](wire::DataHeader* h) { h->operation = wire::Operation::kBroadcast; }}) {
    other = header;
    change(&other);
    EXPECT_FALSE(SameRequest(header, other));
  }
}

}  // namespace
}  // namespace byteps
