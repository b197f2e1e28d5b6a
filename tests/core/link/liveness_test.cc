// Silence and death of peers, as an endpoint sees them.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/link/endpoint.h"
#include "tests/core/link/endpoint_pair.h"

namespace byteps {
namespace {

using LivenessTest = EndpointPair;

TEST_P(LivenessTest, AnIdleLinkLivesAndASilentPeerDies) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
  const Time stopped = fabric_.now();
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 10 * kSecond));
  EXPECT_LE(fabric_.now() - stopped, 6 * kSecond);
  EXPECT_GE(fabric_.now() - stopped, 2 * kSecond) << a->down[2];
  EXPECT_EQ(a->down[2].code(), absl::StatusCode::kUnavailable);
}

// As long as the heartbeat of the configuration is, a peer is asked before its silence counts.
TEST_P(LivenessTest, AnIdleLinkLivesWithAHeartbeatThatIsSlowerThanThePatience) {
  options_.ping_interval = 10 * options_.peer_timeout;
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 60 * kSecond));
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 6 * kSecond));
}

// Neither without heartbeats nor with a patience for ever is silence a death, and then nothing wakes the sleeper.
TEST_P(LivenessTest, SilenceIsNoDeathWhereNoPeerAsks) {
  for (const bool asks : {false, true}) {
    SCOPED_TRACE(asks);
    options_.ping_interval = asks ? kSecond : 0;
    options_.peer_timeout = asks ? 0 : 4 * kSecond;
    const uint32_t it = asks ? 4 : 2;
    auto a = Make(it - 1), b = Make(it);
    ASSERT_TRUE(Connect(a.get(), b.get()));
    EXPECT_FALSE(Run(
        {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
    EXPECT_FALSE(Run(
        {a.get()}, [&] { return !a->down.empty(); }, 20 * kSecond));
    EXPECT_EQ(a->endpoint->NextTimer(), kNever);
  }
}

// Whose configuration says so asks, and is answered by one that never does.
TEST_P(LivenessTest, OneSideMayAskAndTheOtherNot) {
  auto a = Make(1);
  options_.ping_interval = 0;
  auto b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
  EXPECT_FALSE(Run(
      {b.get()}, [&] { return !b->down.empty(); }, 3 * kSecond));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
  EXPECT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 6 * kSecond));
}

// A container that was paused, a job that was stopped and goes on: all have been silent, and no member has died.
TEST_P(LivenessTest, APeerThatHasSleptItselfAsksBeforeItCallsAnyPeerDead) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  EXPECT_FALSE(Run(
      {}, [] { return false; }, 20 * kSecond));
  EXPECT_FALSE(Run(
      {a.get(), b.get()}, [&] { return !a->down.empty() || !b->down.empty(); }, 20 * kSecond));
  EXPECT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 6 * kSecond));
}

TEST_P(LivenessTest, ADeadNodeIsToldOnce) {
  auto a = Make(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  fabric_.Kill("node2");
  a->Cancel(2, 1);
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 10 * kSecond));
  a->Cancel(2, 2);
  a->endpoint->RemovePeer(2);
  EXPECT_TRUE(Run(
      {a.get()}, [&] { return a->removed.size() == 1; }, kSecond));
}

// Between the loss and the word of it the transport refuses the peer: the error is the word's.
TEST_P(LivenessTest, APeerThatIsLostBeforeItIsWrittenToIsNamedWithTheCause) {
  options_.peer_timeout = 600 * kSecond;
  for (const bool lend : {false, true}) {
    SCOPED_TRACE(lend);
    const uint32_t it = lend ? 4 : 2;
    auto a = MakeRefusing(it - 1), b = Make(it);
    ASSERT_TRUE(Connect(a.get(), b.get()));
    std::vector<std::byte> window(4096);
    bps_region* region = nullptr;
    ASSERT_TRUE(a->endpoint->transport().Reg(window.data(), window.size(), &region).ok());
    // What a has posted makes its transport see the death; a does not look.
    for (uint64_t i = 0; i < 3; ++i) a->Cancel(it, i);
    a->endpoint->Poll(fabric_.now());
    fabric_.Kill("node" + std::to_string(it));
    Run(
        {}, [] { return false; }, 10 * kSecond);
    if (lend) {
      refuses_ = Refuses::kKeys;
      EXPECT_TRUE(a->endpoint->Lend(it, region, 0, window.size(), 0, 1).ok());
    } else {
      a->Cancel(it, 3);
    }
    ASSERT_TRUE(Run(
        {a.get()}, [&] { return a->down.contains(it); }, 500 * kMillisecond));
    EXPECT_EQ(a->down[it].message(), "the connection to member " + std::to_string(it) +
                                         " is lost: it has ended, or left, or the network has failed");
    a->endpoint->transport().Unreg(region);
  }
}

TEST_P(LivenessTest, WhatTheTransportSaysOfALossIsInTheError) {
  auto a = MakeRefusing(1), b = Make(2);
  why_ = "broke off: Connection reset by peer";
  ASSERT_TRUE(Connect(a.get(), b.get()));
  fabric_.Kill("node2");
  a->Cancel(2, 1);
  ASSERT_TRUE(Run(
      {a.get()}, [&] { return a->down.contains(2); }, 3 * kSecond));
  why_ = {};
  EXPECT_EQ(a->down[2].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(a->down[2].message(), "the connection to member 2 is lost: it broke off: Connection reset by peer");
}

// A transport that does not keep its word is not waited for.
TEST_P(LivenessTest, APeerThatIsRefusedWithoutAWordIsLostAllTheSame) {
  auto a = MakeRefusing(1), b = Make(2);
  ASSERT_TRUE(Connect(a.get(), b.get()));
  refuses_ = Refuses::kMessages;
  a->Cancel(2, 1);
  ASSERT_TRUE(Run(
      {a.get(), b.get()}, [&] { return a->down.contains(2); }, 2 * kSecond));
  EXPECT_EQ(std::string(a->down[2].message()), "sending to member 2 failed: the transport answered UNAVAILABLE");
}

INSTANTIATE_TEST_SUITE_P(Seeds, LivenessTest, kSeeds);

}  // namespace
}  // namespace byteps
