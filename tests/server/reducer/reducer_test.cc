#include "server/reducer/reducer.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/reduce/dtype.h"
#include "gtest/gtest.h"
#include "tests/server/reducer/reduction_world.h"
#include "tests/server/reducer/together.h"

namespace byteps {
namespace {

// Every member gets every result, and the right one.
void ExpectAllHome(ReductionWorld* world, ReductionSession* session, const std::vector<Together>& rounds) {
  ASSERT_TRUE(world->Run([&] {
    return std::all_of(rounds.begin(), rounds.end(), [&](const Together& round) { return round.Home(session); });
  })) << world->reducer().Describe();
  for (const Together& round : rounds) round.Check(session);
}

class ReducerTest : public testing::TestWithParam<uint64_t> {
 protected:
  ReductionWorldOptions options() {
    ReductionWorldOptions options;
    options.seed = GetParam();
    return options;
  }
};

TEST_P(ReducerTest, ReducesEveryTypeAndOperationOnEveryWay) {
  ReductionWorld world(options());
  const std::vector<uint32_t> groups = {2, 1};
  ReductionSession* session = world.Open(3, groups);
  ASSERT_NE(session, nullptr);
  std::vector<Together> rounds;
  uint64_t seed = 1;
  for (uint32_t dtype :
       {BPS_INT8, BPS_UINT8, BPS_INT32, BPS_INT64, BPS_FLOAT16, BPS_FLOAT32, BPS_FLOAT64, BPS_BFLOAT16}) {
    for (int32_t op : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
      for (size_t elements : {1, 33, 1500}) {
        Ask ask;
        ask.key = seed << 16;
        ask.dtype = dtype;
        ask.reduction = op;
        ask.elements = elements;
        ask.in_record = elements * DtypeSize(dtype) < 5000 && seed % 2 == 0;
        ask.place = seed % 3 == 0 ? ResultPlace::kLentSlot : ResultPlace::kDirect;
        rounds.emplace_back(ask, 3, groups, seed++);
      }
    }
  }
  std::mt19937_64 random(GetParam());
  for (uint32_t rank = 0; rank < 3; ++rank) {
    std::vector<size_t> order(rounds.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i : order) session->worker(rank).Push(rounds[i].of(rank));
  }
  ExpectAllHome(&world, session, rounds);
  EXPECT_EQ(world.reducer().stats().rounds, rounds.size());
  EXPECT_EQ(world.reducer().stats().open, 0u);
  EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
}

// The soak: whatever order, memory, window and way, every result has the right bits.
TEST_P(ReducerTest, ManyTensorsInAnyOrderWithAnyMemory) {
  std::mt19937_64 random(GetParam() + 5);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const uint32_t size = 1 + random() % 5;
    ReductionWorldOptions options = this->options();
    options.slot_bytes = 4096;
    options.slots_per_peer = 1 + random() % 4;
    options.lent_slots = 1 + random() % 3;
    options.inline_bytes = random() % 2 * 512;
    // From the least that is accepted to plenty.
    options.memory = Pool::Least(options.slot_bytes) + size * options.slot_bytes * (1 + random() % 3) +
                     (repeat == 0 ? 0 : random() % (1 << 20));
    ReductionWorld world(options);
    std::vector<uint32_t> groups;
    for (uint32_t left = size; left > 0; left -= groups.back()) groups.push_back(1 + random() % left);
    ReductionSession* session = world.Open(size, groups);
    ASSERT_NE(session, nullptr);

    constexpr uint32_t kDtypes[] = {BPS_FLOAT16, BPS_FLOAT32, BPS_FLOAT64, BPS_INT8, BPS_BFLOAT16};
    // Each worker may be one round ahead of the others in each tensor, as workers are.
    constexpr uint64_t kTensors = 12;
    constexpr uint64_t kRounds = 4;
    std::vector<std::vector<Together>> tensors(kTensors);
    for (uint64_t tensor = 0; tensor < kTensors; ++tensor) {
      Ask ask;
      ask.key = (tensor + 1) << 16;
      ask.part = static_cast<uint32_t>(random() % 3);
      ask.parts = 3;
      ask.dtype = kDtypes[tensor % 5];
      ask.reduction = static_cast<int32_t>(random() % 5);
      const size_t most = options.slot_bytes / DtypeSize(ask.dtype);
      ask.elements = random() % 4 == 0 ? most : 1 + random() % most;
      for (ask.round = 1; ask.round <= kRounds; ++ask.round) {
        ask.in_record = random() % 4 == 0;
        ask.place = random() % 2 == 0 ? ResultPlace::kDirect : ResultPlace::kLentSlot;
        tensors[tensor].emplace_back(ask, size, groups, random() % 1000000);
      }
    }
    // What each worker has pushed last of each tensor.
    std::vector<std::vector<uint64_t>> at(size, std::vector<uint64_t>(kTensors, 0));
    const bool all_home = world.Run([&] {
      bool done = true;
      for (uint32_t rank = 0; rank < size; ++rank) {
        ScriptedWorker& worker = session->worker(rank);
        std::vector<uint64_t> order(kTensors);
        for (uint64_t i = 0; i < kTensors; ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        for (uint64_t tensor : order) {
          uint64_t& round = at[rank][tensor];
          if (round > 0 && !worker.ended(tensors[tensor][round - 1].ask)) {
            done = false;
          } else if (round < kRounds) {
            worker.Push(tensors[tensor][round++].of(rank));
            done = false;
          }
        }
      }
      return done;
    });
    ASSERT_TRUE(all_home) << "size " << size << " memory " << options.memory << " slots " << options.slots_per_peer
                          << "\n"
                          << world.reducer().Describe();
    for (const auto& rounds : tensors) {
      for (const Together& round : rounds) round.Check(session);
    }
    EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
    EXPECT_EQ(world.reducer().stats().rounds, kTensors * kRounds);
    world.reducer().EndSession(world.now(), session->id());
    EXPECT_TRUE(world.Run([&] { return world.reducer().sessions() == 0; }));
    EXPECT_EQ(world.reducer().stats().pool.windows, 0u);
  }
}

// Invariant 2's own test: reversed orders, one slot, the least memory. Contributions are dropped and come again.
TEST_P(ReducerTest, ReversedOrdersInTheLeastMemory) {
  ReductionWorldOptions options = this->options();
  options.slots_per_peer = 1;
  options.memory = Pool::Least(options.slot_bytes) + 2 * options.slot_bytes;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  std::vector<Together> rounds;
  for (uint64_t tensor = 1; tensor <= 40; ++tensor) {
    Ask ask;
    ask.key = tensor << 16;
    ask.dtype = BPS_FLOAT16;
    ask.elements = options.slot_bytes / 2;
    rounds.emplace_back(ask, 2, std::vector<uint32_t>{}, tensor);
  }
  for (const Together& round : rounds) session->worker(0).Push(round.of(0));
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) session->worker(1).Push(round->of(1));
  ExpectAllHome(&world, session, rounds);
  EXPECT_GT(world.reducer().stats().dropped, 0u);
  EXPECT_GT(world.reducer().stats().sent_again, 0u);
}

// Large contributions wait in their slots, even in the last one, but not for ever: workers that go through the tensors
// in different orders get on.
TEST_P(ReducerTest, ReversedOrdersOfLargePartitions) {
  ReductionWorldOptions options = this->options();
  options.slot_bytes = 128 << 10;
  options.slots_per_peer = 3;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  std::vector<Together> rounds;
  for (uint64_t tensor = 1; tensor <= 10; ++tensor) {
    Ask ask;
    ask.key = tensor << 16;
    ask.elements = options.slot_bytes / 4;
    rounds.emplace_back(ask, 2, std::vector<uint32_t>{}, tensor);
  }
  for (const Together& round : rounds) session->worker(0).Push(round.of(0));
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) session->worker(1).Push(round->of(1));
  ExpectAllHome(&world, session, rounds);
}

// A worker whose contributions the others will not care for as long as they have something more urgent is left half of
// its slots, not one: it has something more urgent to send, too.
TEST_P(ReducerTest, WhatWaitsForLongDoesNotKeepASlotFromWhatIsUrgent) {
  ReductionWorldOptions options = this->options();
  options.slot_bytes = 64 << 10;
  options.slots_per_peer = 8;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  std::vector<Together> rounds;
  const auto push = [&] {
    Ask ask;
    ask.key = (rounds.size() + 1) << 16;
    ask.elements = options.slot_bytes / 4;
    rounds.emplace_back(ask, 2, std::vector<uint32_t>{}, ask.key);
    session->worker(0).Push(rounds.back().of(0));
  };
  const auto free = [&] { return session->worker(0).endpoint().FreeSlots(session->worker(0).server()); };
  const auto run = [&](Time span) {
    const Time until = world.now() + span;
    ASSERT_TRUE(world.Run([&] { return world.now() >= until; }));
  };
  for (int i = 0; i < 4; ++i) push();
  run(kSecond);
  EXPECT_EQ(free(), 4u) << "half of them may wait where they are: nothing is copied that need not be";
  EXPECT_EQ(world.reducer().stats().parked, 0u);
  for (int i = 0; i < 3; ++i) push();
  ASSERT_TRUE(world.Run([&] { return free() >= 4; }, kSecond)) << free() << " of 8 slots for what is urgent";
  EXPECT_EQ(world.reducer().stats().dropped, 0u);
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) session->worker(1).Push(round->of(1));
  ExpectAllHome(&world, session, rounds);
}

// A result must survive until every member has it, although the others are far ahead.
TEST_P(ReducerTest, ASlowWorkerGetsItsOwnRoundNotTheNext) {
  ReductionWorldOptions options = this->options();
  options.lent_slots = 2;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  session->worker(1).hold_slots = true;  // its slots fill up, and results wait for it at the server
  std::vector<Together> rounds;
  for (uint64_t tensor = 1; tensor <= 6; ++tensor) {
    Ask ask;
    ask.key = tensor << 16;
    ask.elements = 2000;
    ask.place = ResultPlace::kLentSlot;
    rounds.emplace_back(ask, 2, std::vector<uint32_t>{}, tensor);
    rounds.back().PushAll(session);
  }
  ASSERT_TRUE(world.Run([&] {
    return std::all_of(rounds.begin(), rounds.end(), [&](const auto& r) { return session->worker(0).ended(r.ask); });
  }));
  // The fast worker is in the next round of each already.
  std::vector<Together> next;
  for (const Together& round : rounds) {
    Ask ask = round.ask;
    ask.round = 2;
    next.emplace_back(ask, 2, std::vector<uint32_t>{}, ask.key + 1);
    session->worker(0).Push(next.back().of(0));
  }
  world.Run([] { return false; }, 50 * kMillisecond);
  EXPECT_GT(world.reducer().stats().pool.blocks, 0u);
  for (const Together& round : rounds) EXPECT_FALSE(session->worker(1).ended(round.ask));
  session->worker(1).hold_slots = false;
  ASSERT_TRUE(world.Run([&] {
    return std::all_of(rounds.begin(), rounds.end(), [&](const auto& r) { return session->worker(1).ended(r.ask); });
  }));
  for (const Together& round : rounds) round.Check(session);
  for (const Together& round : next) session->worker(1).Push(round.of(1));
  ASSERT_TRUE(
      world.Run([&] { return std::all_of(next.begin(), next.end(), [&](const auto& r) { return r.Home(session); }); }));
  for (const Together& round : next) round.Check(session);
}

TEST_P(ReducerTest, NothingIsCopiedBetweenWorkersInStep) {
  ReductionWorld world(options());
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  for (uint64_t round = 1; round <= 20; ++round) {
    Ask ask;
    ask.round = round;
    ask.elements = 4096;
    const Together together(ask, 2, {}, round);
    together.PushAll(session);
    ASSERT_TRUE(world.Run([&] { return together.Home(session); }));
    together.Check(session);
  }
  EXPECT_EQ(world.reducer().stats().parked, 0u);
  EXPECT_EQ(world.reducer().stats().dropped, 0u);
}

// A worker that shows no memory and lends none gets what fits into a message.
TEST_P(ReducerTest, AMemberThatOffersNoPlaceGetsTheResultInTheRecord) {
  ReductionWorldOptions options = this->options();
  options.lent_slots = 0;
  options.inline_bytes = 0;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  Ask ask;
  ask.elements = 2000;
  ask.place = ResultPlace::kLentSlot;
  const Together together(ask, 2, {}, 1);
  together.PushAll(session);
  ASSERT_TRUE(world.Run([&] { return together.Home(session); })) << world.reducer().Describe();
  together.Check(session);
}

// What links carry, as workers tell: all hear of the slowest, and of none that does not know it.
TEST_P(ReducerTest, ResultsTellTheLeastRateToAll) {
  ReductionWorld world(options());
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  const std::vector<std::vector<uint32_t>> told = {
      {0, 0, 0}, {0, 50, 0}, {70, 0, 60}, {20, 30, 10}, {30, 20, UINT32_MAX}};
  for (size_t i = 0; i < told.size(); ++i) {
    for (const bool in_record : {false, true}) {
      Ask ask;
      ask.round = 2 * i + (in_record ? 2 : 1);
      ask.elements = in_record ? 10 : 4096;
      ask.in_record = in_record;
      const Together together(ask, 3, {}, 1);
      uint32_t least = 0;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        Ask own = together.of(rank);
        own.rate = told[i][rank];
        if (own.rate != 0 && (least == 0 || own.rate < least)) least = own.rate;
        session->worker(rank).Push(own);
      }
      ASSERT_TRUE(world.Run([&] { return together.Home(session); }));
      together.Check(session);
      for (uint32_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(session->worker(rank).answer(together.ask)->rate, least) << "round " << ask.round << " rank " << rank;
      }
    }
  }
}

TEST_P(ReducerTest, ZeroElementsAreARendezvous) {
  ReductionWorld world(options());
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  const Together together(Ask{}, 3, {}, 1);
  session->worker(0).Push(together.of(0));
  session->worker(2).Push(together.of(2));
  EXPECT_FALSE(world.Run([&] { return session->worker(0).ended(together.ask); }, 100 * kMillisecond));
  session->worker(1).Push(together.of(1));
  ASSERT_TRUE(world.Run([&] { return together.Home(session); }));
  together.Check(session);
}

TEST_P(ReducerTest, BroadcastGivesTheRootsBitsToTheOthers) {
  for (const bool little_memory : {false, true}) {
    ReductionWorldOptions options = this->options();
    options.slots_per_peer = little_memory ? 1 : 4;
    if (little_memory) options.memory = Pool::Least(options.slot_bytes) + 3 * options.slot_bytes;
    ReductionWorld world(options);
    ReductionSession* session = world.Open(3, {2, 1});
    ASSERT_NE(session, nullptr);
    std::mt19937_64 random(GetParam());
    std::vector<Ask> asks;
    std::vector<Bytes> inputs;
    for (uint64_t tensor = 1; tensor <= 30; ++tensor) {
      Ask ask;
      ask.key = tensor << 16;
      ask.operation = wire::Operation::kBroadcast;
      ask.reduction = 0;
      ask.dtype = tensor % 2 == 0 ? BPS_FLOAT16 : BPS_INT64;  // any bits, those of NaNs too
      ask.root = static_cast<int32_t>(tensor % 3);
      ask.elements = tensor % 4 == 0 ? 20 : 2000;
      ask.place = tensor % 5 == 0 ? ResultPlace::kLentSlot : ResultPlace::kDirect;
      Bytes input(ask.elements * DtypeSize(ask.dtype));
      for (std::byte& byte : input) byte = static_cast<std::byte>(random());
      asks.push_back(ask);
      inputs.push_back(input);
    }
    for (uint32_t rank = 0; rank < 3; ++rank) {
      std::vector<size_t> order(asks.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      for (size_t i : order) {
        Ask ask = asks[i];
        if (static_cast<uint32_t>(ask.root) == rank) ask.input = inputs[i];
        session->worker(rank).Push(ask);
      }
    }
    ASSERT_TRUE(world.Run([&] {
      for (const Ask& ask : asks) {
        for (auto& worker : session->workers) {
          if (!worker->ended(ask)) return false;
        }
      }
      return true;
    })) << world.reducer().Describe();
    for (size_t i = 0; i < asks.size(); ++i) {
      for (uint32_t rank = 0; rank < 3; ++rank) {
        const Answer* answer = session->worker(rank).answer(asks[i]);
        EXPECT_EQ(answer->errors, 0) << answer->text;
        EXPECT_EQ(answer->results, 1);
        const bool root = static_cast<uint32_t>(asks[i].root) == rank;
        EXPECT_TRUE(answer->result == (root ? Bytes{} : inputs[i])) << "tensor " << i << " rank " << rank;
      }
    }
  }
}

TEST_P(ReducerTest, NamesDoNotAddUp) {
  ReductionWorldOptions options = this->options();
  options.most_idle_parts = 50;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  for (uint64_t name = 1; name <= 400; ++name) {
    Ask ask;
    ask.key = name << 16;
    ask.elements = 3;
    ask.in_record = true;
    const Together together(ask, 2, {}, name);
    together.PushAll(session);
    ASSERT_TRUE(world.Run([&] { return together.Home(session); }));
    together.Check(session);
    ASSERT_LE(world.reducer().stats().parts, 51u);
  }
  // A name that was forgotten begins anew.
  Ask ask;
  ask.key = 1 << 16;
  ask.round = 2;
  ask.elements = 3;
  const Together together(ask, 2, {}, 7);
  together.PushAll(session);
  ASSERT_TRUE(world.Run([&] { return together.Home(session); }));
  together.Check(session);
}

TEST_P(ReducerTest, ManyLives) {
  ReductionWorldOptions options = this->options();
  options.memory = 768 << 10;
  ReductionWorld world(options);
  for (int life = 0; life < 8; ++life) {
    ReductionSession* session = world.Open(3);
    ASSERT_NE(session, nullptr) << life;
    // As much at a time as makes blocks of all the memory there is.
    std::vector<Together> rounds;
    for (uint64_t name = 1; name <= 40; ++name) {
      Ask ask;
      ask.key = name << 16;
      ask.elements = 4096;
      rounds.emplace_back(ask, 3, std::vector<uint32_t>{}, name);
      session->worker(0).Push(rounds.back().of(0));
      session->worker(1).Push(rounds.back().of(1));
    }
    world.Run([] { return false; }, 20 * kMillisecond);
    if (life % 2 == 0) {
      for (const Together& round : rounds) session->worker(2).Push(round.of(2));
      ASSERT_TRUE(world.Run(
          [&] { return std::all_of(rounds.begin(), rounds.end(), [&](const auto& r) { return r.Home(session); }); }));
      for (const Together& round : rounds) round.Check(session);
    }
    // In the middle of things, every other time.
    world.reducer().EndSession(world.now(), session->id());
    ASSERT_TRUE(world.Run([&] { return world.reducer().sessions() == 0; }));
    EXPECT_EQ(world.reducer().stats().pool.windows, 0u);
    EXPECT_EQ(world.reducer().stats().pool.blocks, 0u);
    EXPECT_EQ(world.reducer().stats().open, 0u);
    world.Remove(session);
  }
}

TEST(ReducerMemoryTest, SaysWhatIsMissing) {
  ReductionWorldOptions options;
  options.memory = Pool::Least(options.slot_bytes) + 2 * options.slot_bytes;
  ReductionWorld world(options);
  const absl::Status status = world.Begin(3, {}, nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(std::string(status.message()).find("BYTEPS_SERVER_MEMORY"), std::string::npos) << status;
  EXPECT_EQ(world.reducer().sessions(), 0u);
  // A smaller session fits.
  EXPECT_NE(world.Open(2), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Networks, ReducerTest, testing::Range<uint64_t>(0, 8));

}  // namespace
}  // namespace byteps
