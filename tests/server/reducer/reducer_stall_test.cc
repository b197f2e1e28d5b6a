// Who has submitted a round hears, once, who has not for a while.
#include <string>

#include "gtest/gtest.h"
#include "server/reducer/reducer.h"
#include "tests/server/reducer/reduction_world.h"
#include "tests/server/reducer/together.h"

namespace byteps {
namespace {

TEST(ReducerStallTest, AMemberThatHasSubmittedHearsWhoHasNot) {
  ReductionWorldOptions options;
  options.stall_warning = 2 * kSecond;
  ReductionWorld world(options);
  ReductionSession* session = world.Open(3);
  ASSERT_NE(session, nullptr);
  Ask ask;
  ask.elements = 2000;
  const Together together(ask, 3, {}, 1);
  session->worker(0).Push(together.of(0));
  session->worker(2).Push(together.of(2));
  const auto told = [&](uint32_t rank) { return session->worker(rank).answer(together.of(rank)); };
  const Time began = world.now();
  ASSERT_TRUE(world.Run([&] { return told(0)->stalls + told(2)->stalls == 2; }, 10 * kSecond));
  EXPECT_GE(world.now() - began, options.stall_warning);
  EXPECT_LT(world.now() - began, options.stall_warning + kSecond);
  for (const uint32_t rank : {0, 2}) {
    const std::string& text = told(rank)->stall;
    EXPECT_NE(text.find("submitted by rank 0"), std::string::npos) << text;
    EXPECT_NE(text.find(" s not by "), std::string::npos) << text;
    EXPECT_LT(text.find("rank 2"), text.find(" s not by ")) << text;
    EXPECT_GT(text.find("rank 1"), text.find(" s not by ")) << text;
  }
  // Once; and the round goes on.
  EXPECT_FALSE(world.Run([&] { return told(0)->stalls + told(2)->stalls > 2; }, 10 * kSecond));
  session->worker(1).Push(together.of(1));
  ASSERT_TRUE(world.Run([&] { return together.Home(session); }));
  together.Check(session);
}

}  // namespace
}  // namespace byteps
