#include "server/reducer.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/message.h"
#include "core/reduce.h"
#include "gtest/gtest.h"
#include "tests/server/reduction_world.h"

namespace byteps {
namespace {

// Numbers whose sums round, and differ by rank, key, round and part.
Bytes Numbers(uint32_t dtype, size_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Bytes bytes(elements * DtypeSize(dtype));
  for (size_t i = 0; i < elements; ++i) {
    std::byte* at = &bytes[i * DtypeSize(dtype)];
    const float value = normal(random);
    if (dtype == BPS_FLOAT32) {
      std::memcpy(at, &value, 4);
    } else if (dtype == BPS_FLOAT64) {
      const double wide = value;
      std::memcpy(at, &wide, 8);
    } else if (dtype == BPS_FLOAT16) {
      const Float16 half = ToFloat16(value);
      std::memcpy(at, &half, 2);
    } else if (dtype == BPS_BFLOAT16) {
      const BFloat16 brain = ToBFloat16(value);
      std::memcpy(at, &brain, 2);
    } else {
      const uint64_t bits = random();
      std::memcpy(at, &bits, DtypeSize(dtype));
    }
  }
  return bytes;
}

Bytes Reduced(const Ask& ask, const std::vector<Bytes>& inputs, const std::vector<uint32_t>& groups) {
  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes output(inputs[0].size());
  Reduce({ask.dtype, ask.reduction}, pointers, groups, output.data(), ask.elements);
  return output;
}

class ReducerTest : public testing::TestWithParam<uint64_t> {
 protected:
  ReductionWorldOptions options() {
    ReductionWorldOptions options;
    options.seed = GetParam();
    return options;
  }
};

// A round of everybody: what each rank pushes, and what must come back.
struct Together {
  Ask ask;
  std::vector<Bytes> inputs;
  Bytes expected;

  Together(Ask description, uint32_t size, const std::vector<uint32_t>& groups, uint64_t seed) : ask(description) {
    for (uint32_t rank = 0; rank < size; ++rank) inputs.push_back(Numbers(ask.dtype, ask.elements, seed * 1000 + rank));
    expected = Reduced(ask, inputs, groups);
  }
  Ask of(uint32_t rank) const {
    Ask mine = ask;
    mine.input = inputs[rank];
    return mine;
  }
  bool Home(ReductionSession* session) const {
    return std::all_of(session->workers.begin(), session->workers.end(),
                       [&](const auto& worker) { return worker->ended(ask); });
  }
  void Check(ReductionSession* session) const {
    for (auto& worker : session->workers) {
      const Answer* answer = worker->answer(ask);
      ASSERT_NE(answer, nullptr);
      EXPECT_EQ(answer->errors, 0) << answer->text;
      EXPECT_EQ(answer->results, 1);
      EXPECT_EQ(answer->result, expected) << "key " << ask.key << " round " << ask.round << " part " << ask.part;
    }
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
  ASSERT_TRUE(world.Run([&] {
    return std::all_of(rounds.begin(), rounds.end(), [&](const Together& round) { return round.Home(session); });
  })) << world.reducer().Describe();
  for (const Together& round : rounds) round.Check(session);
  EXPECT_EQ(world.reducer().stats().rounds, rounds.size());
  EXPECT_EQ(world.reducer().stats().open, 0u);
  EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Networks, ReducerTest, testing::Range<uint64_t>(0, 8));

}  // namespace
}  // namespace byteps
