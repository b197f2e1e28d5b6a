// BYTEPS_CHECKSUM on the server's side: what came altered fails its round, and results have a checksum.
#include <string>
#include <vector>

#include "core/base/crc32c.h"
#include "gtest/gtest.h"
#include "tests/server/reducer/reduction_world.h"

namespace byteps {
namespace {

class ReducerChecksumTest : public testing::TestWithParam<bool> {
 protected:
  Ask Of(uint32_t rank, uint64_t round, bool told) {
    Ask ask;
    ask.round = round;
    ask.elements = GetParam() ? 100 : 3000;
    ask.in_record = GetParam();
    ask.input = Bytes(4 * ask.elements, static_cast<std::byte>(rank + 1));
    if (told) ask.checksum = Crc32c(ask.input);
    return ask;
  }
};

TEST_P(ReducerChecksumTest, ResultsHaveOneIfContributionsHad) {
  for (const bool told : {true, false}) {
    ReductionWorld world;
    ReductionSession* session = world.Open(2);
    ASSERT_NE(session, nullptr);
    for (uint32_t rank = 0; rank < 2; ++rank) session->worker(rank).Push(Of(rank, 1, told));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const Ask ask = Of(rank, 1, told);
      ASSERT_TRUE(world.Run([&] { return session->worker(rank).ended(ask); })) << world.reducer().Describe();
      const Answer* answer = session->worker(rank).answer(ask);
      ASSERT_EQ(answer->results, 1) << answer->text;
      EXPECT_EQ(answer->checksum.has_value(), told);
      if (told) {
        EXPECT_EQ(*answer->checksum, Crc32c(answer->result));
      }
    }
  }
}

TEST_P(ReducerChecksumTest, WhatCameAlteredFailsItsRoundForAllAndNothingElse) {
  for (const uint32_t altered : {0u, 1u}) {
    ReductionWorld world;
    ReductionSession* session = world.Open(2);
    ASSERT_NE(session, nullptr);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Ask ask = Of(rank, 1, true);
      if (rank == altered) ask.input[17] ^= std::byte{4};  // behind its checksum
      session->worker(rank).Push(ask);
    }
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const Ask ask = Of(rank, 1, true);
      ASSERT_TRUE(world.Run([&] { return session->worker(rank).ended(ask); })) << world.reducer().Describe();
      const Answer* answer = session->worker(rank).answer(ask);
      EXPECT_EQ(answer->code, BPS_DATA_LOSS) << answer->text;
      for (const std::string& word : {std::string("altered"), std::string("part 0"), std::string("BYTEPS_CHECKSUM"),
                                      "rank " + std::to_string(altered)}) {
        EXPECT_NE(answer->text.find(word), std::string::npos) << word << " is not in: " << answer->text;
      }
    }
    for (uint64_t round = 2; round < 8; ++round) {
      for (uint32_t rank = 0; rank < 2; ++rank) session->worker(rank).Push(Of(rank, round, true));
      for (uint32_t rank = 0; rank < 2; ++rank) {
        const Ask ask = Of(rank, round, true);
        ASSERT_TRUE(world.Run([&] { return session->worker(rank).ended(ask); })) << world.reducer().Describe();
        EXPECT_EQ(session->worker(rank).answer(ask)->results, 1) << session->worker(rank).answer(ask)->text;
      }
    }
    EXPECT_TRUE(world.Run([&] { return world.reducer().stats().pool.blocks == 0; }));
    EXPECT_TRUE(world.Run(
        [&] { return session->worker(altered).endpoint().FreeSlots(session->worker(altered).server()) == 4; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, ReducerChecksumTest, testing::Bool(),
                         [](const auto& way) { return way.param ? "Inline" : "IntoSlots"; });

}  // namespace
}  // namespace byteps
