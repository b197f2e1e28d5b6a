// Many lives: sessions of one name open again and again on the same servers, which keep nothing of those before.

#include <string>
#include <vector>

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
        ASSERT_TRUE(job.RunUntil([&] { return calls[0]->ended() && calls[1]->ended() && calls[2]->ended(); }));
        for (const Call* call : calls) {
          ASSERT_TRUE(call->ok()) << call->outcome();
          ASSERT_EQ(call->Output<float>(), SimulatedJob::Sum(inputs));
        }
      }
    }
    job.Finish();
  });
}

// Operations are in flight when everybody leaves: they end, the session ends in order.
TEST(Sessions, OfAWorkerThatClosesWithoutGoodbyeFailForTheOthers) {
  ForEachSeed(60, [](uint64_t seed) {
    JobOptions options;
    options.seed = seed;
    options.workers = 2;
    SimulatedJob job(options);
    ASSERT_TRUE(job.Start());
    Call* call = job.worker(0).PushPull("t", std::vector<float>(20'000));
    job.worker(1).PushPull("t", std::vector<float>(20'000));
    job.fabric().Timer(job.fabric().now() + job.fabric().random().Between(0, 5000) * 1000,
                       [&] { job.fabric().Kill("worker1"); });
    ASSERT_TRUE(job.RunUntil([&] { return call->ended() && !job.worker(0).failure().ok(); }, 20 * kSecond));
    job.CheckMemory();
  });
}

}  // namespace
}  // namespace byteps
