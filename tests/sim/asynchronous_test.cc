// Asynchronous tensors on bad networks: every push is added once, no member waits for another but by the bound, and
// what comes back is a value that was there.

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

JobOptions Asynchronous(uint64_t seed, uint64_t staleness = 0) {
  JobOptions options;
  options.seed = seed;
  options.workers = 3;
  options.servers = 2;
  options.asynchronous = true;
  options.staleness = staleness;
  return options;
}

// Sizes of one part within a record, one part, several parts.
constexpr size_t kSizes[] = {1, 60, 900, 5000};

std::string NameOf(size_t size) { return "v" + std::to_string(size); }

// Each worker pushes as often as it likes, at random times; afterwards the value is the sum of all (small whole
// numbers, so that their order means nothing), and no worker has seen its own pushes lost, or the value shrink.
TEST(Asynchronous, EveryPushIsAddedOnce) {
  ForEachSeed(12, [](uint64_t seed) {
    SimulatedJob job(Asynchronous(seed));
    ASSERT_TRUE(job.Start());
    for (const size_t size : kSizes) {
      std::vector<Call*> last(3, nullptr);
      std::vector<float> own(3, 0), seen(3, 0);
      float total = 0;
      const int pushes = 12;
      for (int push = 0;
           push < pushes || std::any_of(last.begin(), last.end(), [](Call* call) { return call != nullptr; }); ++push) {
        for (uint32_t rank = 0; rank < 3; ++rank) {
          if (last[rank] != nullptr) {
            if (!last[rank]->ended()) continue;
            ASSERT_TRUE(last[rank]->ok()) << last[rank]->outcome();
            const std::vector<float> value = last[rank]->Output<float>();
            for (const float element : value) {
              ASSERT_GE(element, own[rank]) << "its own pushes are in it";
              ASSERT_GE(element, seen[rank]) << "and what it has seen";
              ASSERT_LE(element, total);
            }
            seen[rank] = *std::min_element(value.begin(), value.end());
            last[rank] = nullptr;
          }
          if (push < pushes && job.fabric().random().Chance(0.6)) {
            const float delta = 1 + static_cast<float>(rank);
            last[rank] = job.worker(rank).Add(NameOf(size), std::vector<float>(size, delta));
            ASSERT_NE(last[rank], nullptr);
            own[rank] += delta;
            total += delta;
          }
        }
        job.RunFor(job.fabric().random().Below(5) * kMillisecond);
      }
      // All are home: a push of zeros by any member sees them all.
      Call* all = job.worker(seed % 3).Add(NameOf(size), std::vector<float>(size, 0));
      ASSERT_TRUE(job.RunUntilEnded({all}));
      ASSERT_EQ(all->Output<float>(), std::vector<float>(size, total));
    }
    job.Finish();
  });
}

// One that does not come keeps no member waiting; synchronous tensors beside it still wait for all.
TEST(Asynchronous, NoneWaits) {
  SimulatedJob job(Asynchronous(3));
  ASSERT_TRUE(job.Start());
  for (int push = 0; push < 5; ++push) {
    Call* call = job.worker(0).Add("w", {1, 2});
    ASSERT_TRUE(job.RunUntilEnded({call}));
    EXPECT_EQ(call->Output<float>(), (std::vector<float>{1.0F + push, 2.0F * (1 + push)}));
  }
  Call* waits = job.worker(0).PushPull("s", {1});
  job.RunFor(2 * kSecond);
  EXPECT_FALSE(waits->ended());
  std::vector<Call*> calls = {waits, job.worker(1).PushPull("s", {2}), job.worker(2).PushPull("s", {3})};
  ASSERT_TRUE(job.RunUntilEnded(calls));
  EXPECT_EQ(waits->Output<float>(), std::vector<float>{6});
  job.Finish();
}

// Bounded staleness: a member that is ahead waits for the slowest, and no more than that.
TEST(Asynchronous, TheBoundHolds) {
  for (const uint64_t bound : {0, 1, 3}) {
    SimulatedJob job(Asynchronous(7, 1 + bound));
    ASSERT_TRUE(job.Start());
    for (const size_t size : {size_t{2}, size_t{5000}}) {
      std::vector<Call*> slow;
      Call* ahead = nullptr;
      for (uint64_t push = 0; push <= bound; ++push) {
        ahead = job.worker(0).Add(NameOf(size), std::vector<float>(size, 1));
        if (push == bound) break;
        ASSERT_TRUE(job.RunUntilEnded({ahead})) << push;
      }
      job.RunFor(5 * kSecond);
      EXPECT_FALSE(ahead->ended()) << bound;
      slow.push_back(job.worker(1).Add(NameOf(size), std::vector<float>(size, 10)));
      job.RunFor(5 * kSecond);
      EXPECT_FALSE(ahead->ended()) << "rank 2 has not come";
      slow.push_back(job.worker(2).Add(NameOf(size), std::vector<float>(size, 100)));
      slow.push_back(ahead);
      ASSERT_TRUE(job.RunUntilEnded(slow));
      for (const Call* call : slow) ASSERT_TRUE(call->ok()) << call->outcome();
      EXPECT_EQ(ahead->Output<float>(), std::vector<float>(size, 111.0F + static_cast<float>(bound)));
    }
    job.Finish();
  }
}

// A member that waits too long hears for which; the push has been added all the same.
TEST(Asynchronous, TheDeadlineNamesTheSlowest) {
  SimulatedJob job(Asynchronous(9, 1));
  ASSERT_TRUE(job.Start());
  Ask ask;
  ask.name = "w";
  ask.mode = BPS_MODE_ASYNCHRONOUS;
  ask.shape = {2};
  ask.input.resize(8);
  ask.timeout = kSecond;
  Call* alone = job.worker(0).Submit(ask);
  ASSERT_TRUE(job.RunUntilEnded({alone}));
  EXPECT_NE(std::string(alone->outcome().message()).find("may be 0 ahead (BYTEPS_STALENESS) of rank 1"),
            std::string::npos)
      << alone->outcome();
  std::vector<Call*> calls;
  for (uint32_t rank = 0; rank < 3; ++rank) calls.push_back(job.worker(rank).Add("w", {1, 1}));
  ASSERT_TRUE(job.RunUntilEnded({calls[1], calls[2]}));
  job.worker(0).Cancel(calls[0]);  // two pushes of its own: still one ahead
  ASSERT_TRUE(job.RunUntilEnded(calls));
  EXPECT_FALSE(calls[0]->ok());
  job.Finish();
}

TEST(Asynchronous, WhatItCannotDoIsRefused) {
  SimulatedJob job(Asynchronous(11));
  ASSERT_TRUE(job.Start());
  absl::Status refused;
  Ask ask;
  ask.name = "w";
  ask.mode = BPS_MODE_ASYNCHRONOUS;
  ask.shape = {1};
  ask.input.resize(4);
  ask.reduction = BPS_AVERAGE;
  EXPECT_EQ(job.worker(0).Submit(ask, &refused), nullptr);
  EXPECT_NE(std::string(refused.message()).find("BPS_SUM is all there is"), std::string::npos) << refused;
  ask.reduction = BPS_SUM;
  ask.kind = wire::Operation::kBroadcast;
  EXPECT_EQ(job.worker(0).Submit(ask, &refused), nullptr);
  EXPECT_NE(std::string(refused.message()).find("not broadcast"), std::string::npos) << refused;
  ask.kind = wire::Operation::kPushPull;
  ask.mode = BPS_MODE_SYNCHRONOUS;
  EXPECT_EQ(job.worker(0).Submit(ask, &refused), nullptr);
  EXPECT_NE(std::string(refused.message()).find("is declared asynchronous already"), std::string::npos) << refused;
  // Another rank declares it synchronous: refused by the coordinator.
  Call* first = job.worker(0).Add("w", {1});
  ASSERT_TRUE(job.RunUntilEnded({first}));
  Call* other = job.worker(1).PushPull("w", {1});
  ASSERT_TRUE(job.RunUntilEnded({other}));
  EXPECT_NE(std::string(other->outcome().message()).find("synchronous here, and asynchronous elsewhere"),
            std::string::npos)
      << other->outcome();
  job.Finish();
}

}  // namespace
}  // namespace byteps
