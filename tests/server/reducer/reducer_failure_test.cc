// What a Reducer does when ranks disagree, give up, die, or lie.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/wire/message.h"
#include "gtest/gtest.h"
#include "server/reducer/reducer.h"
#include "tests/server/reducer/reduction_world.h"
#include "tests/server/reducer/together.h"

namespace byteps {
namespace {

class ReducerFailureTest : public testing::TestWithParam<uint64_t> {
 protected:
  ReducerFailureTest() : world(Options()) {}
  ReductionWorldOptions Options() {
    ReductionWorldOptions options;
    options.seed = GetParam();
    return options;
  }
  static Ask Large(uint64_t round = 1) {
    Ask ask;
    ask.round = round;
    ask.elements = 2000;
    return ask;
  }
  bool Ended(ReductionSession* session, uint32_t rank, const Ask& ask) {
    return world.Run([&] { return session->worker(rank).ended(ask); });
  }
  void ExpectError(ReductionSession* session, uint32_t rank, const Ask& ask, int32_t code,
                   const std::vector<std::string>& words) {
    ASSERT_TRUE(Ended(session, rank, ask)) << "rank " << rank << "\n" << world.reducer().Describe();
    const Answer* answer = session->worker(rank).answer(ask);
    EXPECT_EQ(answer->results, 0) << "rank " << rank;
    EXPECT_EQ(answer->code, code) << "rank " << rank << ": " << answer->text;
    // Only a broken session makes a server answer so, and it says that it is more than the round.
    EXPECT_EQ((answer->flags & wire::kFlagSessionOver) != 0, code == BPS_UNAVAILABLE) << answer->text;
    for (const std::string& word : words) {
      EXPECT_NE(answer->text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << answer->text;
    }
  }
  // The session is as good as new: a round of every member has the right bits, and nothing is left.
  void ExpectUsable(ReductionSession* session, uint64_t round, uint64_t key = 1 << 16) {
    Ask ask = Large(round);
    ask.key = key;
    const Together together(ask, static_cast<uint32_t>(session->workers.size()), {}, round);
    together.PushAll(session);
    ASSERT_TRUE(world.Run([&] { return together.Home(session); })) << world.reducer().Describe();
    together.Check(session);
    EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
    EXPECT_EQ(world.reducer().stats().open, 0u);
    // And all landing slots are with the workers again.
    EXPECT_TRUE(world.Run([&] {
      return std::all_of(session->workers.begin(), session->workers.end(),
                         [](const auto& worker) { return worker->endpoint().FreeSlots(worker->server()) == 4; });
    }));
  }

  ReductionWorld world;
};

TEST_P(ReducerFailureTest, MismatchIsToldToAllAndTheNextRoundIsFine) {
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  struct Case {
    const char* what;
    std::vector<std::string> words;
    void (*change)(Ask*);
  };
  const std::vector<Case> cases = {
      {"elements", {"2000 elements", "1000 elements"}, [](Ask* ask) { ask->elements = 1000, ask->input.resize(4000); }},
      {"type", {"float32", "float16"}, [](Ask* ask) { ask->dtype = BPS_FLOAT16, ask->input.resize(4000); }},
      {"key", {}, [](Ask* ask) { ask->key += 1; }},
      {"shape", {"another shape"}, [](Ask* ask) { ask->fingerprint += 1; }},
      {"reduction", {"sum", "max"}, [](Ask* ask) { ask->reduction = BPS_MAX, ask->fingerprint += 1; }},
      {"kind",
       {"broadcast from rank 1", "push_pull"},
       [](Ask* ask) { ask->operation = wire::Operation::kBroadcast, ask->root = 1, ask->fingerprint += 1; }},
      {"parts", {"part 0 of 1", "part 0 of 5"}, [](Ask* ask) { ask->parts = 5; }},
      {"told shape",
       {"float32, part 0 of 1 with 2000 elements", "float32, 2x4"},
       [](Ask* ask) {
         ask->key += 1, ask->shape = {2, 4};
       }},
  };
  uint64_t round = 1;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const Together together(Large(round), 3, {}, round);
    Ask other = together.of(1);
    one.change(&other);
    session->worker(0).Push(together.of(0));
    // The one that differs comes second or, next time, alone before the others.
    if (round % 2 == 0) world.Run([&] { return world.reducer().stats().open > 0; });
    session->worker(1).Push(other);
    std::vector<std::string> words = one.words;
    words.insert(words.end(), {"the ranks disagree", "rank 1 (worker", "host worker", "pid"});
    ExpectError(session, 0, together.ask, BPS_FAILED_PRECONDITION, words);
    ExpectError(session, 1, other, BPS_FAILED_PRECONDITION, words);
    // Who comes late hears the same.
    session->worker(2).Push(together.of(2));
    ExpectError(session, 2, together.ask, BPS_FAILED_PRECONDITION, words);
    ++round;
    ExpectUsable(session, round++);
  }
}

TEST_P(ReducerFailureTest, AMismatchTellsBothShapes) {
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  using Shape = std::vector<int64_t>;
  const std::vector<std::tuple<Shape, Shape, const char*, const char*>> cases = {
      {{40, 50}, {50, 40}, "push_pull (sum) of float32, 40x50", "push_pull (sum) of float32, 50x40"},
      {{400000}, {400001}, "float32, 400000", "float32, 400001"},
      {{}, {1, 1}, "float32, scalar", "float32, 1x1"},
      {Shape(64, 1), {2000}, "float32, 1x1x1x1x1x1x1", "float32, 2000"},
  };
  uint64_t round = 1;
  for (const auto& [shape, other_shape, here, there] : cases) {
    for (const bool in_record : {false, true}) {
      Ask description = Large(round);
      description.in_record = in_record;
      if (in_record) description.elements = 100;
      description.shape = shape;
      const Together together(description, 3, {}, round);
      Ask other = together.of(1);
      other.shape = other_shape;
      other.key += 1;
      session->worker(0).Push(together.of(0));
      session->worker(1).Push(other);
      session->worker(2).Push(together.of(2));
      for (uint32_t rank : {0u, 2u}) {
        ExpectError(session, rank, together.ask, BPS_FAILED_PRECONDITION, {here, there, "rank 1"});
      }
      ExpectError(session, 1, other, BPS_FAILED_PRECONDITION, {here, there, "rank 1"});
      ++round;
      ExpectUsable(session, round++);
    }
  }
}

TEST_P(ReducerFailureTest, AMissedRoundIsRememberedWhileOthersGoOn) {
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  const Together first(Large(1), 3, {}, 1);
  Ask other = first.of(1);
  other.fingerprint = 1;
  session->worker(0).Push(first.of(0));
  session->worker(1).Push(other);
  ExpectError(session, 1, other, BPS_FAILED_PRECONDITION, {"disagree"});
  // Ranks 0 and 1 are in the next round when rank 2 comes to this one.
  const Together second(Large(2), 3, {}, 2);
  session->worker(0).Push(second.of(0));
  session->worker(1).Push(second.of(1));
  ASSERT_TRUE(world.Run([&] { return world.reducer().stats().open == 1; }));
  session->worker(2).Push(first.of(2));
  ExpectError(session, 2, first.ask, BPS_FAILED_PRECONDITION, {"disagree"});
  session->worker(2).Push(second.of(2));
  ASSERT_TRUE(world.Run([&] { return second.Home(session); }));
  second.Check(session);
  ExpectUsable(session, 3);
}

TEST_P(ReducerFailureTest, CancelFailsTheRoundForAllAndIsAnswered) {
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  const Together first(Large(1), 3, {}, 1);
  session->worker(0).Push(first.of(0));
  session->worker(1).Push(first.of(1));
  ASSERT_TRUE(world.Run([&] { return session->worker(1).waiting() == 0 && session->worker(0).waiting() == 0; }));
  session->worker(1).Cancel(first.ask, BPS_CANCELLED, "the user said so");
  ExpectError(session, 1, first.ask, BPS_ABORTED, {});
  ExpectError(session, 0, first.ask, BPS_ABORTED, {"rank 1 (worker", "gave up", "the user said so"});
  session->worker(2).Push(first.of(2));
  ExpectError(session, 2, first.ask, BPS_ABORTED, {"rank 1 (worker"});
  ExpectUsable(session, 2);

  // Of a round that no member has come to yet; by a member that passes on what it heard elsewhere.
  const Together third(Large(3), 3, {}, 3);
  session->worker(2).Cancel(third.ask, BPS_DEADLINE_EXCEEDED, "rank 1 is late");
  ExpectError(session, 2, third.ask, BPS_DEADLINE_EXCEEDED, {});
  session->worker(0).Push(third.of(0));
  ExpectError(session, 0, third.ask, BPS_DEADLINE_EXCEEDED, {"rank 1 is late"});
  session->worker(1).Push(third.of(1));
  ExpectError(session, 1, third.ask, BPS_DEADLINE_EXCEEDED, {"rank 1 is late"});
  ExpectUsable(session, 4);
}

TEST_P(ReducerFailureTest, CancelOfAResultThatWaitsTakesItBackOneThatIsOnItsWayComes) {
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  session->worker(1).hold_slots = true;  // two results fit, the others wait at the server
  std::vector<Together> rounds;
  for (uint64_t name = 1; name <= 4; ++name) {
    Ask ask = Large();
    ask.key = name << 16;
    ask.place = ResultPlace::kLentSlot;
    rounds.emplace_back(ask, 2, std::vector<uint32_t>{}, name);
    rounds.back().PushAll(session);
    ASSERT_TRUE(world.Run([&] { return session->worker(0).ended(ask); }));
  }
  for (const Together& round : rounds) session->worker(1).Cancel(round.ask, BPS_CANCELLED, "");
  world.Run([] { return false; }, 100 * kMillisecond);
  session->worker(1).hold_slots = false;
  int results = 0;
  int errors = 0;
  for (const Together& round : rounds) {
    ASSERT_TRUE(Ended(session, 1, round.ask));
    const Answer* answer = session->worker(1).answer(round.ask);
    // One answer: the result, or the word that there will be none.
    EXPECT_EQ(answer->results + answer->errors, 1);
    results += answer->results;
    errors += answer->errors;
  }
  EXPECT_EQ(results, 2);
  EXPECT_EQ(errors, 2);
  ExpectUsable(session, 2, 1 << 16);
}

TEST_P(ReducerFailureTest, GoingOnGivesTheEarlierRoundUp) {
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  const Together first(Large(1), 2, {}, 1);
  const Together second(Large(2), 2, {}, 2);
  session->worker(0).Push(first.of(0));
  session->worker(1).Push(second.of(1));
  ExpectError(session, 0, first.ask, BPS_ABORTED, {"rank 1 (worker"});
  session->worker(0).Push(second.of(0));
  ASSERT_TRUE(world.Run([&] { return second.Home(session); }));
  second.Check(session);
  // A round that is past does not come back.
  session->worker(0).Push(first.of(0));
  ExpectError(session, 0, first.ask, BPS_ABORTED, {"is past", "round 2"});
  ExpectUsable(session, 3);
}

TEST_P(ReducerFailureTest, ARankThatGivesSeveralRoundsUpIsHeardInAll) {
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  const Together first(Large(1), 2, {}, 1);
  const Together second(Large(2), 2, {}, 2);
  session->worker(0).Cancel(first.ask, BPS_CANCELLED, "no memory");
  session->worker(0).Cancel(second.ask, BPS_CANCELLED, "no memory");
  ASSERT_TRUE(Ended(session, 0, second.ask));
  session->worker(1).Push(first.of(1));
  ExpectError(session, 1, first.ask, BPS_ABORTED, {"is past", "round 2 has failed", "rank 0", "gave up: no memory"});
  session->worker(1).Push(second.of(1));
  ExpectError(session, 1, second.ask, BPS_ABORTED, {"rank 0", "gave up: no memory"});
  ExpectUsable(session, 3);
}

TEST_P(ReducerFailureTest, DeadlineNamesWhoIsMissing) {
  ReductionSession* session = world.Open(4);
  ASSERT_NE(session, nullptr);
  Ask ask = Large(1);
  ask.timeout_ms = 600'000;
  const Together together(ask, 4, {}, 1);
  Ask hurried = together.of(0);
  hurried.timeout_ms = 300;
  session->worker(0).Push(hurried);
  session->worker(2).Push(together.of(2));
  const Time begin = world.now();
  ExpectError(
      session, 0, together.ask, BPS_DEADLINE_EXCEEDED,
      {"nothing of it had come from rank 1 (worker, host worker", "rank 3", "not submitted, or still queued there"});
  const Time waited = world.now() - begin;
  EXPECT_GE(waited, 300 * kMillisecond);
  EXPECT_LT(waited, 1000 * kMillisecond);
  ExpectError(session, 2, together.ask, BPS_DEADLINE_EXCEEDED, {"rank 1", "rank 3"});
  EXPECT_EQ(session->worker(0).answer(together.ask)->text.find("rank 2"), std::string::npos);
  for (uint32_t rank : {1u, 3u}) {
    session->worker(rank).Push(together.of(rank));
    ExpectError(session, rank, together.ask, BPS_DEADLINE_EXCEEDED, {"rank 1", "rank 3"});
  }
  ExpectUsable(session, 2);
}

TEST_P(ReducerFailureTest, DeadlineOfDataThatDoesNotCome) {
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  Ask ask = Large(1);
  ask.timeout_ms = 200;
  const Together together(ask, 2, {}, 1);
  session->worker(0).Push(together.of(0));
  // Rank 1 announces a write, and never makes it.
  ScriptedWorker& liar = session->worker(1);
  wire::DataHeader header = liar.HeaderOf(together.of(1));
  const RemoteSlot slot = *liar.endpoint().TakeSlot(liar.server());
  header.immediate = slot.immediate;
  liar.SendRaw(wire::RecordType::kPush, BytesOf(header));
  ExpectError(session, 0, together.ask, BPS_DEADLINE_EXCEEDED, {"data of rank 1 (worker", "not arrived"});
  EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
  // When the bytes come after all, no member is confused, and the slot is lent again.
  const Bytes late(8000, std::byte{1});
  ASSERT_TRUE(world.Run([&] {
    return liar.endpoint().WriteSlot(liar.server(), {nullptr, const_cast<std::byte*>(late.data())}, late.size(), slot,
                                     9);
  }));
  ExpectUsable(session, 2);
}

// Kills rank 1 at some point of its life; the others hear its name, and other sessions do not notice.
TEST_P(ReducerFailureTest, AWorkerThatDiesIsNamedToItsSessionAndToNoOther) {
  ReductionSession* bystanders = world.Open(2);
  ASSERT_NE(bystanders, nullptr);
  enum class Moment { kIdle, kGathering, kAnnounced, kResultWaits, kFailed };
  for (const Moment moment :
       {Moment::kIdle, Moment::kGathering, Moment::kAnnounced, Moment::kResultWaits, Moment::kFailed}) {
    SCOPED_TRACE(static_cast<int>(moment));
    ReductionSession* session = world.Open(3);
    ASSERT_NE(session, nullptr);
    Ask ask = Large(1);
    ask.place = ResultPlace::kLentSlot;
    const Together together(ask, 3, {}, 1);
    const std::string node = session->epoch.workers(1).host().name();
    ScriptedWorker& victim = session->worker(1);
    switch (moment) {
      case Moment::kIdle:
        break;
      case Moment::kGathering:
        session->worker(0).Push(together.of(0));
        victim.Push(together.of(1));
        ASSERT_TRUE(world.Run([&] { return victim.waiting() == 0 && session->worker(0).waiting() == 0; }));
        world.Run([] { return false; }, 20 * kMillisecond);
        break;
      case Moment::kAnnounced: {
        session->worker(0).Push(together.of(0));
        wire::DataHeader header = victim.HeaderOf(together.of(1));
        header.immediate = victim.endpoint().TakeSlot(victim.server())->immediate;
        victim.SendRaw(wire::RecordType::kPush, BytesOf(header));
        world.Run([] { return false; }, 20 * kMillisecond);
        break;
      }
      case Moment::kResultWaits: {
        victim.hold_slots = true;
        for (uint64_t name = 11; name < 15; ++name) {
          Ask other = ask;
          other.key = name << 16;
          const Together round(other, 3, {}, name);
          round.PushAll(session);
          ASSERT_TRUE(world.Run([&] { return session->worker(0).ended(other) && session->worker(2).ended(other); }));
        }
        EXPECT_GT(world.reducer().stats().pool.blocks, 0u);
        break;
      }
      case Moment::kFailed:
        victim.Cancel(ask, BPS_CANCELLED, "");
        ASSERT_TRUE(Ended(session, 1, ask));
        break;
    }
    world.fabric().Kill(node);
    std::vector<BrokenSession> broken;
    ASSERT_TRUE(world.Run([&] {
      for (const BrokenSession& one : world.reducer().TakeBroken()) broken.push_back(one);
      return !broken.empty();
    }));
    EXPECT_EQ(broken[0].session, session->id());
    EXPECT_EQ(broken[0].member, session->epoch.workers(1).member());
    EXPECT_NE(std::string(broken[0].why.message()).find("rank 1 (worker, host " + node), std::string::npos)
        << broken[0].why;
    if (moment == Moment::kGathering || moment == Moment::kAnnounced) {
      ExpectError(session, 0, ask, BPS_UNAVAILABLE, {"rank 1 (worker, host " + node});
    }
    // A member that comes later hears it at once.
    Ask later = Large(9);
    const Together late(later, 3, {}, 9);
    session->worker(2).Push(late.of(2));
    ExpectError(session, 2, late.ask, BPS_UNAVAILABLE, {"rank 1 (worker"});
    EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; })) << world.reducer().Describe();
    ExpectUsable(bystanders, static_cast<uint64_t>(moment) + 1);
    world.reducer().EndSession(world.now(), session->id());
    EXPECT_TRUE(world.Run([&] { return world.reducer().sessions() == 1; }));
    EXPECT_TRUE(world.reducer().TakeBroken().empty());
    world.Remove(session);
  }
}

TEST_P(ReducerFailureTest, WhatIsReservedIsRefusedByName) {
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  struct Case {
    std::string word;
    void (*change)(wire::DataHeader*);
  };
  const std::vector<Case> cases = {
      {"process sets", [](wire::DataHeader* h) { h->process_set = 3; }},
      {"asynchronous tensors", [](wire::DataHeader* h) { h->operation = wire::Operation::kAsynchronous; }},
      {"operation 65", [](wire::DataHeader* h) { h->operation = static_cast<wire::Operation>(65); }},
      {"codec 2", [](wire::DataHeader* h) { h->codec = 2; }},
      {"flags 2", [](wire::DataHeader* h) { h->flags = 2; }},
      {"contributor sets", [](wire::DataHeader* h) { h->contributors = 5; }},
      {"reserved fields", [](wire::DataHeader* h) { h->memory.reserved = 5; }},
      {"payload way 3", [](wire::DataHeader* h) { h->way = wire::PayloadWay::kInPlace; }},
      {"data type", [](wire::DataHeader* h) { h->dtype = 12345; }},
      {"another type", [](wire::DataHeader* h) { h->wire_dtype = BPS_FLOAT16; }},
      {"reduction 9", [](wire::DataHeader* h) { h->reduction = 9; }},
  };
  uint64_t round = 1;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.word);
    const Together together(Large(round), 2, {}, round);
    session->worker(0).Push(together.of(0));
    ASSERT_TRUE(world.Run([&] { return world.reducer().stats().open == 1; }));
    ScriptedWorker& worker = session->worker(1);
    wire::DataHeader header = worker.HeaderOf(together.of(1));
    header.way = wire::PayloadWay::kInline;
    one.change(&header);
    worker.SendRaw(wire::RecordType::kPush, BytesOf(header), together.inputs[1]);
    ExpectError(session, 0, together.ask, BPS_UNIMPLEMENTED, {one.word, "rank 1 (worker"});
    EXPECT_FALSE(worker.down.has_value());
    ++round;
    ExpectUsable(session, round++);
  }
}

TEST_P(ReducerFailureTest, NonsenseEndsTheSessionOfItsSenderOnly) {
  ReductionSession* bystanders = world.Open(2);
  ASSERT_NE(bystanders, nullptr);
  using Change = void (*)(wire::DataHeader*);
  const std::vector<std::pair<std::string, Change>> cases = {
      {"rank 7", [](wire::DataHeader* h) { h->rank = 7; }},
      {"part 4 of 2", [](wire::DataHeader* h) { h->part = 4, h->parts = 2; }},
      {"elements", [](wire::DataHeader* h) { h->elements = uint64_t{1} << 62; }},
      {"elements", [](wire::DataHeader* h) { h->elements = ~uint64_t{0} / 4 + 3; }},
      {"offset", [](wire::DataHeader* h) { h->offset = ~uint64_t{0} / 4; }},
      {"payload of 7", [](wire::DataHeader* h) { h->payload_bytes = 7; }},
      {"cut off", [](wire::DataHeader* h) { h->elements = 3000, h->payload_bytes = 12000; }},
      {"no payload", [](wire::DataHeader* h) { h->way = wire::PayloadWay::kNone; }},
      {"none of its free slots",
       [](wire::DataHeader* h) { h->way = wire::PayloadWay::kLanded, h->immediate = 0xffffffff; }},
      {"key of 9 bytes", [](wire::DataHeader* h) { h->memory.key_size = 9; }},
      {"root -1", [](wire::DataHeader* h) { h->operation = wire::Operation::kBroadcast, h->root = -1; }},
  };
  uint64_t round = 1;
  for (const auto& [word, change] : cases) {
    SCOPED_TRACE(word);
    ReductionSession* session = world.Open(2);
    ASSERT_NE(session, nullptr);
    const Together together(Large(1), 2, {}, 1);
    session->worker(0).Push(together.of(0));
    ASSERT_TRUE(world.Run([&] { return world.reducer().stats().open == 1; }));
    ScriptedWorker& worker = session->worker(1);
    wire::DataHeader header = worker.HeaderOf(together.of(1));
    header.way = wire::PayloadWay::kInline;
    change(&header);
    worker.SendRaw(wire::RecordType::kPush, BytesOf(header), together.inputs[1]);
    ExpectError(session, 0, together.ask, BPS_UNAVAILABLE, {"rank 1 (worker", "broke the protocol", word});
    EXPECT_EQ(world.reducer().TakeBroken().size(), 1u);
    ExpectUsable(bystanders, round++);
    world.reducer().EndSession(world.now(), session->id());
    EXPECT_TRUE(world.Run([&] { return world.reducer().sessions() == 1; }));
    world.Remove(session);
  }
}

TEST_P(ReducerFailureTest, ASlotOfAnotherWorkerIsNotTaken) {
  ReductionSession* bystanders = world.Open(2);
  ReductionSession* session = world.Open(2);
  ASSERT_TRUE(bystanders != nullptr && session != nullptr);
  // The bystander's window was lent first: its slots are 0 and up.
  const Together together(Large(1), 2, {}, 1);
  ScriptedWorker& thief = session->worker(0);
  wire::DataHeader header = thief.HeaderOf(together.of(0));
  header.immediate = bystanders->worker(0).endpoint().TakeSlot(bystanders->worker(0).server())->immediate;
  thief.SendRaw(wire::RecordType::kPush, BytesOf(header));
  ASSERT_TRUE(world.Run([&] { return thief.down.has_value() || !world.reducer().TakeBroken().empty(); }));
  const Together theirs(Large(1), 2, {}, 2);
  theirs.PushAll(bystanders);
  ASSERT_TRUE(world.Run([&] { return theirs.Home(bystanders); }));
  theirs.Check(bystanders);
}

INSTANTIATE_TEST_SUITE_P(Networks, ReducerFailureTest, testing::Range<uint64_t>(0, 8));

}  // namespace
}  // namespace byteps
