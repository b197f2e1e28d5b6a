// What a Reducer does when something throws in the middle of its work: the session that it hits breaks, and the others
// go on.
#include <stdexcept>
#include <string>

#include "gtest/gtest.h"
#include "server/reducer/reducer.h"
#include "tests/server/reducer/reduction_world.h"
#include "tests/server/reducer/together.h"

namespace byteps {
namespace {

// The fabric's transport, but for a write that throws.
const bps_transport_table* fabric_table = nullptr;
bool throws = false;

int32_t ThrowingWrite(bps_transport* transport, bps_peer peer, const bps_local* from, size_t size, const bps_remote* to,
                      uint32_t immediate, uint64_t user) {
  if (throws) throw std::runtime_error("out of order");
  return fabric_table->post_write(transport, peer, from, size, to, immediate, user);
}

const bps_transport_table* Wrapped(const bps_transport_table* table) {
  static bps_transport_table wrapped;
  fabric_table = table;
  wrapped = *table;
  wrapped.post_write = ThrowingWrite;
  wrapped.post_send_and_write = nullptr;
  return &wrapped;
}

Ask Large(uint64_t round) {
  Ask ask;
  ask.round = round;
  ask.elements = 2000;
  return ask;
}

TEST(ReducerExceptionTest, TheSessionThatItHitsBreaksAndTheOthersGoOn) {
  ReductionWorldOptions options;
  options.wrap = Wrapped;
  ReductionWorld world(options);
  ReductionSession* hit = world.Open(2);
  ReductionSession* other = world.Open(2);
  ASSERT_NE(hit, nullptr);
  ASSERT_NE(other, nullptr);
  const Together broken_round(Large(1), 2, {}, 1);
  broken_round.PushAll(hit);
  throws = true;
  std::vector<BrokenSession> broken;
  EXPECT_TRUE(world.Run([&] { return !(broken = world.reducer().TakeBroken()).empty(); }));
  throws = false;
  ASSERT_EQ(broken.size(), 1u);
  EXPECT_EQ(broken[0].session, hit->id());
  EXPECT_EQ(broken[0].why.code(), absl::StatusCode::kInternal);
  EXPECT_NE(broken[0].why.ToString().find("exception in lane 0 of the server: out of order"), std::string::npos)
      << broken[0].why;
  for (uint64_t round = 1; round <= 3; ++round) {
    const Together next(Large(round), 2, {}, round);
    next.PushAll(other);
    ASSERT_TRUE(world.Run([&] { return next.Home(other); })) << world.reducer().Describe();
    next.Check(other);
  }
  // The coordinator ends what is broken, and its memory is free.
  world.reducer().EndSession(world.now(), hit->id());
  EXPECT_TRUE(world.Run([&] { return world.reducer().sessions() == 1; })) << world.reducer().Describe();
}

TEST(ReducerExceptionTest, WhatCannotBeLaidToOneSessionBreaksAllAndLaterOnesAreServed) {
  ReductionWorld world;
  ReductionSession* before = world.Open(2);
  ASSERT_NE(before, nullptr);
  world.reducer().BreakAll("out of order");
  const std::vector<BrokenSession> broken = world.reducer().TakeBroken();
  ASSERT_EQ(broken.size(), 1u);
  EXPECT_EQ(broken[0].session, before->id());
  ReductionSession* later = world.Open(2);
  ASSERT_NE(later, nullptr);
  const Together next(Large(1), 2, {}, 1);
  next.PushAll(later);
  ASSERT_TRUE(world.Run([&] { return next.Home(later); })) << world.reducer().Describe();
  next.Check(later);
}

}  // namespace
}  // namespace byteps
