// Asynchronous tensors at one Reducer: every way of a payload, permissions that are taken away, little memory.
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/reducer/reducer.h"
#include "tests/server/reducer/reduction_world.h"

namespace byteps {
namespace {

constexpr uint32_t kWorkers = 3;

Bytes Filled(size_t elements, float value) {
  const std::vector<float> numbers(elements, value);
  Bytes bytes(elements * sizeof(float));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

// Empty: they differ, though all of them belong to one part.
std::optional<float> OneNumber(const Bytes& bytes) {
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  if (numbers.empty() || std::any_of(numbers.begin(), numbers.end(), [&](float n) { return n != numbers.front(); })) {
    return std::nullopt;
  }
  return numbers.front();
}

Ask Add(uint64_t tensor, uint64_t round, size_t elements, float delta) {
  Ask ask;
  ask.key = tensor << 16;
  ask.operation = wire::Operation::kAsynchronous;
  ask.round = round;
  ask.elements = elements;
  ask.input = Filled(elements, delta);
  return ask;
}

class ReducerAsynchronousTest : public testing::TestWithParam<uint64_t> {
 protected:
  ReductionWorldOptions options() {
    ReductionWorldOptions options;
    options.seed = GetParam();
    options.asynchronous = true;
    options.more_flags = BPS_TRANSPORT_COPY;
    if (GetParam() >= 4) options.more_flags |= BPS_TRANSPORT_MAP_REMOTE;
    return options;
  }
  static bool Home(ReductionSession* session, uint32_t rank, const std::vector<Ask>& asks) {
    return std::all_of(asks.begin(), asks.end(), [&](const Ask& ask) { return session->worker(rank).ended(ask); });
  }
  // The results of rank in the order of its rounds hold its own pushes, never shrink, and end at no more than `most`.
  static void CheckGrowth(ReductionSession* session, uint32_t rank, const std::vector<Ask>& asks, float delta,
                          float most) {
    float before = 0, own = 0;
    for (const Ask& ask : asks) {
      const Answer& answer = *session->worker(rank).answer(ask);
      ASSERT_EQ(answer.results, 1) << answer.text;
      const std::optional<float> value = OneNumber(answer.result);
      ASSERT_TRUE(value.has_value()) << "rank " << rank << ", round " << ask.round;
      own += delta;
      ASSERT_GE(*value, own);
      ASSERT_GE(*value, before);
      ASSERT_LE(*value, most);
      before = *value;
    }
  }
};

TEST_P(ReducerAsynchronousTest, EveryWayOfAPayloadIsAddedOnce) {
  ReductionWorld world(options());
  ReductionSession* session = world.Open(kWorkers, {2, 1});
  ASSERT_NE(session, nullptr);
  std::mt19937_64 random(GetParam() + 5);
  uint64_t tensor = 0;
  for (const size_t elements : {1, 200, 3000}) {
    ++tensor;
    constexpr uint64_t kRounds = 10;
    std::vector<std::vector<Ask>> asks(kWorkers);
    float total = 0;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      for (uint64_t round = 1; round <= kRounds; ++round) {
        Ask ask = Add(tensor, round, elements, 1.0F + static_cast<float>(rank));
        ask.in_place = random() % 2 == 0;
        ask.over_input = ask.in_place && random() % 2 == 0;
        ask.in_record = elements <= 200 && random() % 2 == 0;
        ask.place = !ask.in_place && random() % 3 == 0 ? ResultPlace::kLentSlot : ResultPlace::kDirect;
        asks[rank].push_back(ask);
        total += 1.0F + static_cast<float>(rank);
      }
    }
    // A worker pushes its next when the last is home, as a tensor's rounds are; no worker waits for another.
    for (uint64_t round = 0; round < kRounds; ++round) {
      for (uint32_t rank = 0; rank < kWorkers; ++rank) session->worker(rank).Push(asks[rank][round]);
      ASSERT_TRUE(world.Run([&] {
        for (uint32_t rank = 0; rank < kWorkers; ++rank) {
          if (!session->worker(rank).ended(asks[rank][round])) return false;
        }
        return true;
      })) << world.reducer().Describe();
    }
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      CheckGrowth(session, rank, asks[rank], 1.0F + static_cast<float>(rank), total);
    }
    const Ask last = Add(tensor, kRounds + 1, elements, 0);
    session->worker(0).Push(last);
    ASSERT_TRUE(world.Run([&] { return session->worker(0).ended(last); }));
    EXPECT_EQ(OneNumber(session->worker(0).answer(last)->result), total);
  }
  EXPECT_EQ(world.reducer().stats().failed, 0u);
  EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
}

// The system takes the permission to read a worker's memory away: the push whose memory is not reached comes by a slot,
// and is added once.
TEST_P(ReducerAsynchronousTest, AfterARefusalPushesComeBySlots) {
  for (const size_t elements : {size_t{2000}, size_t{64}}) {
    ReductionWorld world(options());
    ReductionSession* session = world.Open(kWorkers, {2, 1});
    ASSERT_NE(session, nullptr);
    std::vector<Ask> asks;
    for (uint64_t round = 1; round <= 8; ++round) {
      if (round == 3) {
        world.fabric().RefuseCopies("server", "worker" + std::to_string(session->epoch.workers(1).member()));
      }
      asks.push_back(Add(1, round, elements, 2));
      asks.back().in_place = true;
      asks.back().over_input = round % 2 == 0;
      session->worker(1).Push(asks.back());
      ASSERT_TRUE(world.Run([&] { return Home(session, 1, asks); })) << world.reducer().Describe();
      const std::optional<float> value = OneNumber(session->worker(1).answer(asks.back())->result);
      EXPECT_EQ(value, 2.0F * static_cast<float>(round)) << session->worker(1).answer(asks.back())->text;
    }
    EXPECT_FALSE(session->worker(1).reached());
    EXPECT_EQ(world.reducer().stats().sent_again, 1u);
    EXPECT_EQ(world.reducer().stats().failed, 0u);
  }
}

// Answers that lack memory wait for it, in the order of their pushes; nothing that was pushed is lost or added twice.
TEST_P(ReducerAsynchronousTest, AnswersWaitForMemory) {
  ReductionWorldOptions options = this->options();
  options.slots_per_peer = 1;
  options.memory = Pool::Least(options.slot_bytes) + kWorkers * options.slot_bytes;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(kWorkers, {2, 1});
  ASSERT_NE(session, nullptr);
  constexpr uint64_t kTensors = 20;
  const size_t elements = options.slot_bytes / sizeof(float);
  std::vector<std::vector<Ask>> asks(kWorkers);
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    session->worker(rank).hold_slots = true;
    for (uint64_t tensor = 1; tensor <= kTensors; ++tensor) {
      asks[rank].push_back(Add(tensor, 1, elements, 1.0F + static_cast<float>(rank)));
      asks[rank].back().place = ResultPlace::kLentSlot;
    }
    if (rank == 1) std::reverse(asks[rank].begin(), asks[rank].end());
    for (const Ask& ask : asks[rank]) session->worker(rank).Push(ask);
  }
  // The lent slots are full, and then the memory is.
  world.Run([] { return false; }, kSecond);
  size_t home = 0;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    for (const Ask& ask : asks[rank]) home += session->worker(rank).ended(ask) ? 1 : 0;
  }
  EXPECT_LT(home, kWorkers * kTensors);
  for (uint32_t rank = 0; rank < kWorkers; ++rank) session->worker(rank).hold_slots = false;
  ASSERT_TRUE(world.Run([&] {
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      if (!Home(session, rank, asks[rank])) return false;
    }
    return true;
  })) << world.reducer().Describe();
  for (uint64_t tensor = 1; tensor <= kTensors; ++tensor) {
    const Ask last = Add(tensor, 2, elements, 0);
    session->worker(0).Push(last);
    ASSERT_TRUE(world.Run([&] { return session->worker(0).ended(last); })) << world.reducer().Describe();
    EXPECT_EQ(OneNumber(session->worker(0).answer(last)->result), 6.0F) << tensor;
  }
  EXPECT_EQ(world.reducer().stats().failed, 0u);
}

// A job without BYTEPS_ENABLE_ASYNC refuses such a push.
TEST(ReducerWithoutAsynchronousTest, RefusesAsynchronousTensors) {
  ReductionWorld world;
  ReductionSession* session = world.Open(2);
  ASSERT_NE(session, nullptr);
  const Ask ask = Add(1, 1, 10, 1);
  session->worker(0).Push(ask);
  ASSERT_TRUE(world.Run([&] { return session->worker(0).ended(ask); }));
  const Answer& answer = *session->worker(0).answer(ask);
  EXPECT_EQ(answer.code, BPS_UNIMPLEMENTED);
  EXPECT_NE(answer.text.find("BYTEPS_ENABLE_ASYNC"), std::string::npos) << answer.text;
}

INSTANTIATE_TEST_SUITE_P(Networks, ReducerAsynchronousTest, testing::Range<uint64_t>(0, 8));

}  // namespace
}  // namespace byteps
