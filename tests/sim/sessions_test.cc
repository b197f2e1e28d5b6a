// Many lives: sessions of one name open again and again on the same servers, which keep nothing of those before.

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

TEST(Sessions, OpenAgainOnTheSameServers) {
  ForEachSeed(40, [](uint64_t seed) {
    JobOptions options;
    options.seed = seed;
    options.workers = 3;
    options.servers = 2;
    options.server_memory = 128 << 10;
    options.linger = 20 * kSecond;
    SimulatedJob job(options);
    uint64_t last = 0;
    for (int life = 0; life < 5; ++life) {
      SCOPED_TRACE(life);
      if (life > 0) job.Reopen();
      ASSERT_TRUE(job.Start());
      EXPECT_NE(job.worker(0).client().session_id(), last);
      last = job.worker(0).client().session_id();
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<float>> inputs;
        std::vector<Call*> calls;
        for (uint32_t w = 0; w < 3; ++w) {
          // The same name, another shape each time.
          inputs.push_back(job.Numbers(1000 * (1 + static_cast<size_t>(life + round) % 4)));
          calls.push_back(job.worker(w).PushPull("t", inputs.back()));
          ASSERT_NE(calls.back(), nullptr);
        }
        ASSERT_TRUE(job.RunUntilEnded(calls));
        for (const Call* call : calls) {
          ASSERT_TRUE(call->ok()) << call->outcome();
          ASSERT_EQ(call->Output<float>(), SimulatedJob::Sum(inputs));
        }
      }
    }
    job.Finish();
  });
}

// Operations are in flight when every member leaves: they end, the session ends in order.
TEST(Sessions, OfAWorkerThatClosesWithoutGoodbyeFailForTheOthers) {
  ForEachSeed(60, [](uint64_t seed) {
    SimulatedJob job({.seed = seed, .workers = 2});
    ASSERT_TRUE(job.Start());
    Call* call = job.worker(0).PushPull("t", std::vector<float>(20'000));
    job.worker(1).PushPull("t", std::vector<float>(20'000));
    job.fabric().Timer(job.fabric().now() + job.fabric().random().Between(0, 5000) * 1000,
                       [&] { job.fabric().Kill("worker1"); });
    ASSERT_TRUE(job.RunUntil([&] { return call->ended() && !job.worker(0).failure().ok(); }, 20 * kSecond));
    job.CheckMemory();
  });
}

// Three workers, of which the last one leaves when it has waited for the others: through servers, on one host, or both.
void ForEachShape(uint64_t count, const std::function<void(SimulatedJob& job)>& test) {
  ForEachSeed(count, [&](uint64_t seed) {
    for (const int shape : {0, 1, 2}) {
      SCOPED_TRACE(shape);
      JobOptions options;
      options.seed = seed;
      options.workers = 3;
      options.servers = shape == 1 ? 0 : 2;
      if (shape == 1) options.workers_per_host = 3;
      if (shape == 2) options.hosts = {1, 2};
      options.local = shape != 0;
      options.groups = shape == 0 ? "none" : "host";
      SimulatedJob job(options);
      ASSERT_TRUE(job.Start());
      test(job);
      job.CheckMemory();
    }
  });
}

void LeaveFirst(SimulatedJob& job) {
  job.worker(2).Leave(kSecond);
  ASSERT_TRUE(job.RunUntil([&] { return job.worker(2).left().has_value(); }));
  // That the others stay is not its error.
  EXPECT_TRUE(job.worker(2).left()->ok()) << *job.worker(2).left();
}

constexpr char kWhoLeft[] = "has left the session before the others";

// A long checkpoint of one rank, while the others have not waited for it.
TEST(Sessions, OneThatLeavesFirstDisturbsNoMemberThatDoesNotNeedIt) {
  ForEachShape(20, [](SimulatedJob& job) {
    std::vector<Call*> calls;
    for (uint32_t w = 0; w < 3; ++w) calls.push_back(job.worker(w).PushPull("t", job.Numbers(5000)));
    ASSERT_TRUE(job.RunUntil([&] { return calls[0]->ended() && calls[1]->ended() && calls[2]->ended(); }));
    LeaveFirst(job);
    // Its links are gone by now, wherever they led.
    job.RunFor(10 * kSecond);
    for (uint32_t w = 0; w < 2; ++w) {
      EXPECT_TRUE(job.worker(w).failure().ok()) << job.worker(w).failure();
      job.worker(w).Leave(10 * kSecond);
    }
    ASSERT_TRUE(job.RunUntil([&] { return job.worker(0).left() && job.worker(1).left(); }));
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.worker(w).left()->ok()) << *job.worker(w).left();
  });
}

TEST(Sessions, AMemberThatNeedsOneThatHasLeftHearsThatItHas) {
  ForEachShape(20, [](SimulatedJob& job) {
    LeaveFirst(job);
    job.RunFor(job.fabric().random().Between(0, 1000) * kMillisecond);
    Call* call = job.worker(0).PushPull("t", job.Numbers(5000));
    ASSERT_TRUE(call != nullptr);
    ASSERT_TRUE(job.RunUntil([&] { return call->ended() && !job.worker(1).failure().ok(); }, 20 * kSecond));
    EXPECT_THAT(std::string(call->outcome().message()), testing::HasSubstr(kWhoLeft));
    for (uint32_t w = 0; w < 2; ++w) {
      EXPECT_THAT(std::string(job.worker(w).failure().message()), testing::HasSubstr("worker rank 2"));
      EXPECT_THAT(std::string(job.worker(w).failure().message()), testing::HasSubstr(kWhoLeft));
    }
  });
}

TEST(Sessions, AMemberThatWaitsForOneThatLeavesHearsThatItHas) {
  ForEachShape(20, [](SimulatedJob& job) {
    Call* call = job.worker(0).PushPull("t", job.Numbers(5000));
    Call* other = job.worker(1).PushPull("t", job.Numbers(5000));
    LeaveFirst(job);
    ASSERT_TRUE(job.RunUntil([&] { return call->ended() && other->ended(); }, 20 * kSecond));
    EXPECT_THAT(std::string(call->outcome().message()), testing::HasSubstr(kWhoLeft));
    EXPECT_THAT(std::string(other->outcome().message()), testing::HasSubstr(kWhoLeft));
  });
}

}  // namespace
}  // namespace byteps
