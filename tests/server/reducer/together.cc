#include "tests/server/reducer/together.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "core/reduce/dtype.h"
#include "core/reduce/reduce.h"
#include "gtest/gtest.h"

namespace byteps {

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

Together::Together(const Ask& description, uint32_t size, const std::vector<uint32_t>& groups, uint64_t seed)
    : ask(description) {
  for (uint32_t rank = 0; rank < size; ++rank) inputs.push_back(Numbers(ask.dtype, ask.elements, seed * 1000 + rank));
  expected = Reduced(ask, inputs, groups);
}

Ask Together::of(uint32_t rank) const {
  Ask mine = ask;
  mine.input = inputs[rank];
  return mine;
}

void Together::PushAll(ReductionSession* session) const {
  for (uint32_t rank = 0; rank < inputs.size(); ++rank) session->worker(rank).Push(of(rank));
}

bool Together::Home(ReductionSession* session) const {
  return std::all_of(session->workers.begin(), session->workers.end(),
                     [&](const auto& worker) { return worker->ended(ask); });
}

void Together::Check(ReductionSession* session) const {
  for (auto& worker : session->workers) {
    const Answer* answer = worker->answer(ask);
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->errors, 0) << answer->text;
    EXPECT_EQ(answer->results, 1);
    EXPECT_TRUE(answer->result == expected) << "key " << ask.key << " round " << ask.round << " part " << ask.part;
  }
}

void Together::CheckFailed(ReductionSession* session, int32_t code, const std::string& text) const {
  for (auto& worker : session->workers) {
    const Answer* answer = worker->answer(ask);
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->results, 0);
    EXPECT_EQ(answer->errors, 1);
    EXPECT_EQ(answer->code, code) << answer->text;
    EXPECT_NE(answer->text.find(text), std::string::npos) << answer->text;
  }
}

}  // namespace byteps
