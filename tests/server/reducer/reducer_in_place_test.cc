// Contributions that stay with their workers: read when they are folded, their results written where they are wanted.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/reduce/dtype.h"
#include "core/wire/message.h"
#include "gtest/gtest.h"
#include "server/reducer/reducer.h"
#include "tests/server/reducer/reduction_world.h"
#include "tests/server/reducer/together.h"

namespace byteps {
namespace {

class ReducerInPlaceTest : public testing::TestWithParam<uint64_t> {
 protected:
  ReductionWorldOptions options() {
    ReductionWorldOptions options;
    options.seed = GetParam();
    options.more_flags = BPS_TRANSPORT_COPY;
    if (GetParam() >= 4) options.more_flags |= BPS_TRANSPORT_MAP_REMOTE;
    if (GetParam() >= 6) options.map_delay = 3 * kMillisecond;
    return options;
  }
  static Ask InPlace(uint64_t name, size_t elements, bool over_input = false) {
    Ask ask;
    ask.key = name << 16;
    ask.elements = elements;
    ask.in_place = true;
    ask.over_input = over_input;
    return ask;
  }
  static bool AllHome(ReductionSession* session, const std::vector<Together>& rounds) {
    return std::all_of(rounds.begin(), rounds.end(), [&](const Together& round) { return round.Home(session); });
  }
  // The slots are with the workers, all of them.
  static bool SlotsFree(ReductionSession* session, size_t slots) {
    return std::all_of(session->workers.begin(), session->workers.end(),
                       [&](const auto& worker) { return worker->endpoint().FreeSlots(worker->server()) == slots; });
  }
};

// Some ranks in place, some through slots, some in the record; over the input or beside it; in a random order.
TEST_P(ReducerInPlaceTest, EveryTypeAndOperationOnEveryMixtureOfWays) {
  ReductionWorld world(options());
  const std::vector<uint32_t> groups = {2, 1, 1};
  ReductionSession* session = world.Open(4, groups);
  ASSERT_NE(session, nullptr);
  std::mt19937_64 random(GetParam() + 17);
  std::vector<Together> rounds;
  std::vector<std::vector<Ask>> asks(4);
  uint64_t in_place = 0, seed = 1;
  for (uint32_t dtype :
       {BPS_INT8, BPS_UINT8, BPS_INT32, BPS_INT64, BPS_FLOAT16, BPS_FLOAT32, BPS_FLOAT64, BPS_BFLOAT16}) {
    for (int32_t op : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
      for (size_t elements : {1, 33, 1500}) {
        Ask ask;
        ask.key = seed << 16;
        ask.dtype = dtype;
        ask.reduction = op;
        ask.elements = elements;
        rounds.emplace_back(ask, 4, groups, seed++);
        for (uint32_t rank = 0; rank < 4; ++rank) {
          Ask mine = rounds.back().of(rank);
          mine.in_place = random() % 2 == 0;
          mine.over_input = mine.in_place && random() % 2 == 0;
          mine.in_record = elements * DtypeSize(dtype) < 5000 && random() % 2 == 0;
          mine.place = !mine.in_place && random() % 3 == 0 ? ResultPlace::kLentSlot : ResultPlace::kDirect;
          in_place += mine.in_place ? 1 : 0;
          asks[rank].push_back(mine);
        }
      }
    }
  }
  for (uint32_t rank = 0; rank < 4; ++rank) {
    std::shuffle(asks[rank].begin(), asks[rank].end(), random);
    for (const Ask& ask : asks[rank]) session->worker(rank).Push(ask);
  }
  ASSERT_TRUE(world.Run([&] { return AllHome(session, rounds); })) << world.reducer().Describe();
  for (const Together& round : rounds) round.Check(session);
  EXPECT_EQ(world.reducer().stats().rounds, rounds.size());
  EXPECT_EQ(world.reducer().stats().open, 0u);
  EXPECT_EQ(world.reducer().stats().in_place, in_place);
  EXPECT_EQ(world.reducer().stats().mapped != 0, GetParam() >= 4);
  EXPECT_EQ(world.fabric().stats().mapped, 0);
  EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0 && SlotsFree(session, 4); }));
}

// Where every member's bytes can be read where they are, no payload travels, and the server keeps none.
TEST_P(ReducerInPlaceTest, NothingIsWrittenAndNoSlotIsTaken) {
  ReductionWorldOptions options = this->options();
  options.slot_bytes = 512 << 10;  // several blocks, the last one not whole
  options.memory = 32 << 20;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  const uint64_t peak = world.reducer().stats().pool.peak;
  std::vector<Together> rounds;
  for (uint64_t name = 1; name <= 10; ++name) {
    rounds.emplace_back(InPlace(name, 100'003, name % 2 == 0), 3, std::vector<uint32_t>{}, name);
    rounds.back().PushAll(session);
  }
  EXPECT_FALSE(world.Run([&] { return !SlotsFree(session, 4); }, kMillisecond));
  ASSERT_TRUE(world.Run([&] { return AllHome(session, rounds); })) << world.reducer().Describe();
  for (const Together& round : rounds) round.Check(session);
  EXPECT_EQ(world.fabric().stats().writes, 0u);
  EXPECT_EQ(world.reducer().stats().landed, 0u);
  EXPECT_EQ(world.reducer().stats().in_place, 30u);
  EXPECT_EQ(world.reducer().stats().pool.peak, peak) << "no block was needed";
  EXPECT_TRUE(SlotsFree(session, 4));
}

// Memory that can be mapped is not there yet when it is announced: the round stands aside, others go on; it is neither
// lost nor in the way.
TEST_P(ReducerInPlaceTest, MemoryThatIsNotHereYetIsWaitedFor) {
  ReductionWorldOptions options = this->options();
  options.more_flags |= BPS_TRANSPORT_MAP_REMOTE;
  options.map_delay = 400 * kMillisecond;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  const auto waits = [&] {
    return std::all_of(session->workers.begin(), session->workers.end(),
                       [](const auto& worker) { return worker->waiting() == 0; });
  };
  const Together late(InPlace(1, 2000), 3, {}, 1), over_inputs(InPlace(2, 2000, true), 3, {}, 2);
  Ask ask = InPlace(3, 2000);
  const Together cancelled(ask, 3, {}, 3);
  ask.key = 4 << 16;
  ask.timeout_ms = 150;
  const Together impatient(ask, 3, {}, 4);
  ask = {};
  ask.key = 5 << 16;
  ask.elements = 2000;
  const Together other(ask, 3, {}, 5);
  for (const Together* together : {&late, &over_inputs, &cancelled, &impatient, &other}) together->PushAll(session);
  const Time begin = world.now();
  ASSERT_TRUE(world.Run(waits)) << world.reducer().Describe();
  ASSERT_TRUE(world.Run([&] { return other.Home(session); })) << world.reducer().Describe();
  other.Check(session);
  session->worker(1).Cancel(cancelled.ask, BPS_CANCELLED, "so be it");
  ASSERT_TRUE(world.Run([&] { return cancelled.Home(session) && impatient.Home(session); }));
  cancelled.CheckFailed(session, BPS_ABORTED, "");
  impatient.CheckFailed(session, BPS_DEADLINE_EXCEEDED, "memory that was shown to the server has not arrived there");
  EXPECT_LT(world.now() - begin, options.map_delay);
  EXPECT_EQ(world.reducer().stats().in_place, 0u);
  ASSERT_TRUE(world.Run([&] { return late.Home(session) && over_inputs.Home(session); })) << world.reducer().Describe();
  late.Check(session);
  over_inputs.Check(session);
  EXPECT_GE(world.now() - begin, options.map_delay);
  EXPECT_EQ(world.reducer().stats().mapped, 6u);
  EXPECT_EQ(world.fabric().stats().mapped, 0);
  for (const Together* together : {&cancelled, &impatient}) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(session->worker(rank).TakeBack(together->ask) == Bytes(8000, std::byte{0xee}));
    }
  }
}

// The system takes the permission to reach a worker's memory away in the middle of a session: no round is lost, and
// from then on this worker's contributions come by its slots.
TEST_P(ReducerInPlaceTest, AfterARefusalContributionsComeBySlots) {
  for (const size_t elements : {size_t{2000}, size_t{64}}) {  // 64: the result travels in the record
    ReductionWorld world(options());
    ReductionSession* session = world.Open(3, {2, 1});
    ASSERT_NE(session, nullptr);
    std::vector<Together> rounds;
    for (uint64_t number = 1; number <= 8; ++number) {
      if (number == 3) {
        world.fabric().RefuseCopies("server", "worker" + std::to_string(session->epoch.workers(1).member()));
      }
      for (uint64_t name = 1; name <= 3; ++name) {
        Ask ask = InPlace(name, elements, name == 2);
        ask.round = number;
        rounds.emplace_back(ask, 3, std::vector<uint32_t>{2, 1}, number * 10 + name);
        rounds.back().PushAll(session);
      }
      ASSERT_TRUE(world.Run([&] { return AllHome(session, rounds); })) << world.reducer().Describe();
    }
    for (const Together& round : rounds) round.Check(session);
    const ReducerStats stats = world.reducer().stats();
    EXPECT_EQ(stats.failed, 0u);
    EXPECT_EQ(stats.rounds, 24u);
    // What can be mapped needs no permission.
    const bool mapped = GetParam() >= 4;
    EXPECT_EQ(session->worker(1).reached(), mapped);
    EXPECT_TRUE(session->worker(0).reached() && session->worker(2).reached());
    EXPECT_EQ(stats.in_place, mapped ? 72u : 54u);
    EXPECT_EQ(stats.landed, mapped ? 0u : 18u);
    EXPECT_EQ(stats.sent_again, mapped ? 0u : 3u);
    EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0 && SlotsFree(session, 4); }));
  }
}

// An input that can be mapped beside an output that cannot: it is copied to, or, where the system refuses that, the
// whole contribution comes by a slot, and the result to where slots' results go. No member's output has been written to
// before that is known, so no round is lost.
TEST_P(ReducerInPlaceTest, MappedInputsWhoseOutputsAreNot) {
  for (const bool copies : {true, false}) {
    SCOPED_TRACE(copies);
    ReductionWorldOptions options = this->options();
    options.more_flags |= BPS_TRANSPORT_MAP_REMOTE;
    ReductionWorld world(options);
    ReductionSession* session = world.Open(3, {2, 1});
    ASSERT_NE(session, nullptr);
    std::vector<Together> rounds;
    for (uint64_t number = 1; number <= 6; ++number) {
      if (number == 3) {
        const std::string node = "worker" + std::to_string(session->epoch.workers(2).member());
        world.fabric().RefuseMappedWrites("server", node);
        if (!copies) world.fabric().RefuseCopies("server", node);
      }
      for (uint64_t name = 1; name <= 3; ++name) {
        Ask ask = InPlace(name, 2000, name == 2);
        ask.round = number;
        rounds.emplace_back(ask, 3, std::vector<uint32_t>{2, 1}, number * 10 + name);
        rounds.back().PushAll(session);
      }
      ASSERT_TRUE(world.Run([&] { return AllHome(session, rounds); })) << world.reducer().Describe();
    }
    for (const Together& round : rounds) round.Check(session);
    const ReducerStats stats = world.reducer().stats();
    EXPECT_EQ(stats.failed, 0u);
    EXPECT_EQ(stats.rounds, 18u);
    EXPECT_EQ(session->worker(2).reached(), copies);
    EXPECT_EQ(stats.in_place, copies ? 54u : 42u);
    EXPECT_EQ(stats.sent_again, copies ? 0u : 3u);
    EXPECT_EQ(world.fabric().stats().mapped, 0);
    EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0 && SlotsFree(session, 4); }));
  }
}

// Invariant 2 with a mixture: reversed orders, one slot, the least memory. What is dropped comes again; what is in
// place need not.
TEST_P(ReducerInPlaceTest, ReversedOrdersInTheLeastMemory) {
  ReductionWorldOptions options = this->options();
  options.slots_per_peer = 1;
  options.memory = Pool::Least(options.slot_bytes) + 3 * options.slot_bytes;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(3, {2, 1});
  ASSERT_NE(session, nullptr);
  std::vector<Together> rounds;
  std::vector<std::vector<Ask>> asks(3);
  for (uint64_t tensor = 1; tensor <= 40; ++tensor) {
    Ask ask;
    ask.key = tensor << 16;
    ask.dtype = BPS_FLOAT16;
    ask.elements = options.slot_bytes / 2;
    rounds.emplace_back(ask, 3, std::vector<uint32_t>{2, 1}, tensor);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      asks[rank].push_back(rounds.back().of(rank));
      asks[rank].back().in_place = rank == tensor % 3;
    }
  }
  std::reverse(asks[1].begin(), asks[1].end());
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (const Ask& ask : asks[rank]) session->worker(rank).Push(ask);
  }
  ASSERT_TRUE(world.Run([&] { return AllHome(session, rounds); })) << world.reducer().Describe();
  for (const Together& round : rounds) round.Check(session);
  EXPECT_GT(world.reducer().stats().dropped, 0u);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (const Ask& ask : asks[rank]) {
      if (ask.in_place) {
        EXPECT_EQ(session->worker(rank).answer(ask)->again, 0);
      }
    }
  }
  EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0 && SlotsFree(session, 1); }));
}

TEST_P(ReducerInPlaceTest, BroadcastFromTheRootsMemory) {
  ReductionWorld world(options());
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  for (uint32_t root = 0; root < 3; ++root) {
    Ask ask = InPlace(root + 1, 2000);
    ask.operation = wire::Operation::kBroadcast;
    ask.reduction = 0;
    ask.root = static_cast<int32_t>(root);
    const Bytes input = Numbers(BPS_FLOAT32, 2000, root);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Ask mine = ask;
      if (rank == root) mine.input = input;
      session->worker(rank).Push(mine);
    }
    for (uint32_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(world.Run([&] { return session->worker(rank).ended(ask); }));
      EXPECT_EQ(session->worker(rank).answer(ask)->errors, 0) << session->worker(rank).answer(ask)->text;
      EXPECT_TRUE(session->worker(rank).answer(ask)->result == (rank == root ? Bytes{} : input));
    }
  }
  EXPECT_EQ(world.reducer().stats().in_place, 3u);
  EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
}

// Announcements cost nothing, so a worker makes them all at once: what is urgent overtakes them here.
TEST(ReducerPriorityTest, WhatIsUrgentIsFoldedFirst) {
  ReductionWorldOptions options;
  options.more_flags = BPS_TRANSPORT_COPY;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(1);
  ASSERT_NE(session, nullptr);
  std::vector<Together> rounds;
  for (uint64_t name = 1; name <= 12; ++name) {
    Ask ask;
    ask.key = name << 16;
    ask.elements = 2000;
    ask.in_place = true;
    ask.priority = static_cast<int64_t>(name % 3);
    rounds.emplace_back(ask, 1, std::vector<uint32_t>{}, name);
    rounds.back().PushAll(session);
  }
  ASSERT_TRUE(world.Run([&] {
    return std::all_of(rounds.begin(), rounds.end(), [&](const Together& round) { return round.Home(session); });
  }));
  // They came in few messages; of each, the urgent ones first, and those that are equally so in their order.
  const std::vector<uint64_t> expected = {2, 5, 8, 11, 1, 4, 7, 10, 3, 6, 9, 12};
  std::vector<uint64_t> order;
  for (uint64_t key : session->worker(0).order()) order.push_back(key >> 16);
  EXPECT_EQ(order, expected);
}

// Rounds that only wait for their turn when they are cancelled: out of the queue, though others go on.
TEST(ReducerPriorityTest, WhatIsCancelledWhileItWaitsIsNotFolded) {
  ReductionWorldOptions options;
  options.more_flags = BPS_TRANSPORT_COPY;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(1);
  ASSERT_NE(session, nullptr);
  const auto ask_of = [](uint64_t name, uint64_t round) {
    Ask ask;
    ask.key = name << 16;
    ask.round = round;
    ask.elements = 2000;
    ask.in_place = true;
    ask.priority = -static_cast<int64_t>(name);
    return ask;
  };
  std::vector<Together> rounds;
  for (uint64_t name = 1; name <= 8; ++name) {
    rounds.emplace_back(ask_of(name, 1), 1, std::vector<uint32_t>{}, name);
    rounds.back().PushAll(session);
  }
  ASSERT_TRUE(world.Run([&] { return session->worker(0).waiting() == 0; }));
  for (uint64_t name = 5; name <= 8; ++name) session->worker(0).Cancel(rounds[name - 1].ask, BPS_CANCELLED, "so be it");
  ASSERT_TRUE(world.Run([&] {
    return std::all_of(rounds.begin(), rounds.end(),
                       [&](const Together& round) { return session->worker(0).ended(round.ask); });
  })) << world.reducer().Describe();
  EXPECT_EQ(world.reducer().stats().failed, 4u);  // none of the four was folded before its CANCEL
  EXPECT_EQ(world.reducer().stats().in_place, 4u);
  for (uint64_t name = 1; name <= 8; ++name) {
    const Together& round = rounds[name - 1];
    EXPECT_EQ(session->worker(0).answer(round.ask)->results, name < 5 ? 1 : 0) << name;
    if (name < 5) continue;
    EXPECT_TRUE(session->worker(0).TakeBack(round.ask) == Bytes(8000, std::byte{0xee})) << name;
  }
  const Together next(ask_of(8, 2), 1, {}, 9);
  next.PushAll(session);
  ASSERT_TRUE(world.Run([&] { return next.Home(session); })) << world.reducer().Describe();
  next.Check(session);
}

// A member that has heard ERROR has its memory for itself: the server neither reads nor writes it.
TEST_P(ReducerInPlaceTest, AfterACancelNoMemoryIsTouched) {
  ReductionWorld world(options());
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  for (uint64_t round = 1; round <= 6; ++round) {
    Ask ask = InPlace(1, 2000, round % 2 == 0);
    ask.round = round;
    const Together together(ask, 3, {}, round);
    session->worker(0).Push(together.of(0));
    session->worker(1).Push(together.of(1));
    ASSERT_TRUE(world.Run([&] { return session->worker(0).waiting() + session->worker(1).waiting() == 0; }));
    session->worker(1).Cancel(together.ask, BPS_CANCELLED, "the user said so");
    for (uint32_t rank : {0u, 1u}) {
      ASSERT_TRUE(world.Run([&] { return session->worker(rank).ended(together.ask); }));
      EXPECT_EQ(session->worker(rank).answer(together.ask)->code, BPS_ABORTED);
      EXPECT_TRUE(session->worker(rank).answer(together.ask)->result.empty());
    }
    // The last announcement comes too late, and starts nothing.
    session->worker(2).Push(together.of(2));
    ASSERT_TRUE(world.Run([&] { return session->worker(2).ended(together.ask); }));
    EXPECT_EQ(session->worker(2).answer(together.ask)->code, BPS_ABORTED);
    EXPECT_EQ(world.reducer().stats().in_place, 0u);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const Bytes untouched = ask.over_input ? together.inputs[rank] : Bytes(8000, std::byte{0xee});
      EXPECT_TRUE(session->worker(rank).TakeBack(together.ask) == untouched) << "rank " << rank;
    }
  }
}

// A worker takes its memory away without a word (its grace period is over, and this server was slow): the round fails,
// in words that name it, and nothing else does.
TEST_P(ReducerInPlaceTest, MemoryThatWasTakenBackFailsTheRound) {
  ReductionWorld world(options());
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  const Together together(InPlace(1, 2000), 2, {}, 1);
  session->worker(0).Push(together.of(0));
  ASSERT_TRUE(world.Run([&] { return world.reducer().stats().open == 1; }));
  session->worker(0).TakeBack(together.ask);
  session->worker(1).Push(together.of(1));
  for (uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(world.Run([&] { return session->worker(rank).ended(together.ask); }));
    const Answer* answer = session->worker(rank).answer(together.ask);
    EXPECT_EQ(answer->results, 0);
    EXPECT_NE(answer->text.find("memory of rank 0 (worker"), std::string::npos) << answer->text;
  }
  Ask next = InPlace(1, 2000);
  next.round = 2;
  const Together second(next, 2, {}, 2);
  second.PushAll(session);
  ASSERT_TRUE(world.Run([&] { return second.Home(session); })) << world.reducer().Describe();
  second.Check(session);
}

// A worker that takes its memory away says why next: that is what the others are told, and not what came of it.
TEST_P(ReducerInPlaceTest, WhoseMemoryWasTakenBackHasTheNextWord) {
  for (const bool dies : {false, true}) {
    SCOPED_TRACE(dies ? "and dies" : "and has given the round up");
    ReductionWorldOptions how = options();
    // On a bad one a death may be known by silence alone.
    if (dies) how.seed = 0;
    ReductionWorld world(how);
    ReductionSession* session = world.Open(2);
    ASSERT_NE(session, nullptr);
    const Together together(InPlace(1, 2000), 2, {}, 1);
    session->worker(0).Push(together.of(0));
    ASSERT_TRUE(world.Run([&] { return world.reducer().stats().open == 1; }));
    session->worker(0).TakeBack(together.ask);
    session->worker(1).Push(together.of(1));
    world.Run([] { return false; }, 100 * kMillisecond);
    if (dies) {
      world.fabric().Kill("worker" + std::to_string(session->epoch.workers(0).member()));
    } else {
      session->worker(0).Cancel(together.ask, BPS_CANCELLED, "the user said so");
    }
    ASSERT_TRUE(world.Run([&] { return session->worker(1).ended(together.ask); }));
    const Answer* answer = session->worker(1).answer(together.ask);
    EXPECT_EQ(answer->code, dies ? BPS_UNAVAILABLE : BPS_ABORTED) << answer->text;
    EXPECT_EQ(answer->flags, dies ? wire::kFlagSessionOver : 0u) << answer->text;
    EXPECT_NE(answer->text.find("rank 0 (worker"), std::string::npos) << answer->text;
    EXPECT_EQ(answer->text.find("the user said so") != std::string::npos, !dies) << answer->text;
    EXPECT_EQ(answer->text.find("could not be read"), std::string::npos) << answer->text;
  }
}

// A worker dies between its announcement and the last one; the others hear its name, and are left alone.
TEST_P(ReducerInPlaceTest, ADeadWorkerEndsTheSession) {
  ReductionWorld world(options());
  ReductionSession* session = world.Open(3);
  ReductionSession* other = world.Open(2);
  ASSERT_NE(session, nullptr);
  ASSERT_NE(other, nullptr);
  const Together together(InPlace(1, 2000), 3, {}, 1);
  session->worker(0).Push(together.of(0));
  session->worker(1).Push(together.of(1));
  ASSERT_TRUE(world.Run([&] {
    return world.reducer().stats().open == 1 && session->worker(1).waiting() == 0 && session->worker(0).waiting() == 0;
  }));
  world.Run([] { return false; }, 100 * kMillisecond);
  world.fabric().Kill("worker" + std::to_string(session->epoch.workers(1).member()));
  session->worker(2).Push(together.of(2));
  for (uint32_t rank : {0u, 2u}) {
    ASSERT_TRUE(world.Run([&] { return session->worker(rank).ended(together.ask); })) << world.reducer().Describe();
    const Answer* answer = session->worker(rank).answer(together.ask);
    EXPECT_EQ(answer->code, BPS_UNAVAILABLE);
    EXPECT_NE(answer->text.find("rank 1 (worker"), std::string::npos) << answer->text;
    EXPECT_TRUE(session->worker(rank).TakeBack(together.ask) == Bytes(8000, std::byte{0xee}));
  }
  const Together fine(InPlace(1, 2000), 2, {}, 9);
  fine.PushAll(other);
  ASSERT_TRUE(world.Run([&] { return fine.Home(other); }));
  fine.Check(other);
}

// What no member of this release sends closes its link; what the way to a worker cannot do is refused.
TEST_P(ReducerInPlaceTest, PlacesThatAreNone) {
  struct Case {
    const char* words;
    size_t place_bytes;
    void (*change)(wire::DataHeader*, wire::MemoryRef*);
  };
  for (const Case& one : {Case{"a place that is cut off", 40, [](wire::DataHeader*, wire::MemoryRef*) {}},
                          Case{"names no memory", sizeof(wire::MemoryRef), [](wire::DataHeader*, wire::MemoryRef*) {}},
                          Case{"no place for its result", sizeof(wire::MemoryRef),
                               [](wire::DataHeader*header, wire::MemoryRef*) { header->memory = {}; }}}) {
    SCOPED_TRACE(one.words);
    ReductionWorld world(options());
    ReductionSession* session = world.Open(2);
    ASSERT_NE(session, nullptr);
    ScriptedWorker& worker = session->worker(0);
    Ask ask = InPlace(1, 2000);
    ask.input = Bytes(8000);
    wire::DataHeader header = worker.HeaderOf(ask);
    header.memory.key_size = static_cast<uint16_t>(worker.endpoint().caps().key_size);
    wire::MemoryRef place{};
    one.change(&header, &place);
    worker.SendRaw(wire::RecordType::kPush, BytesOf(header), BytesOf(place).first(one.place_bytes));
    std::vector<BrokenSession> broken;
    ASSERT_TRUE(world.Run([&] {
      for (BrokenSession& taken : world.reducer().TakeBroken()) broken.push_back(std::move(taken));
      return !broken.empty();
    }));
    EXPECT_NE(std::string(broken[0].why.message()).find(one.words), std::string::npos) << broken[0].why;
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, ReducerInPlaceTest, testing::Values(0, 1, 2, 3, 4, 5, 6, 7));

}  // namespace
}  // namespace byteps
