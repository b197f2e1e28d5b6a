// Trouble in the network: links that are cut for a while cost time and nothing else; links that stay cut end the
// session for every member, and no member waits for ever.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

std::vector<std::string> Names(const JobOptions& options) {
  std::vector<std::string> names = {"coordinator"};
  for (uint32_t s = 0; s < options.servers; ++s) names.push_back("server" + std::to_string(s));
  for (uint32_t w = 0; w < options.workers; ++w) names.push_back("worker" + std::to_string(w));
  return names;
}

TEST(Trouble, ALinkThatIsCutForAWhileCostsTimeOnly) {
  ForEachSeed(100, [](uint64_t seed) {
    SimulatedJob job({.seed = seed, .workers = 3, .servers = 2});
    ASSERT_TRUE(job.Start());
    const std::vector<std::string> names = Names(job.options());
    sim::Random& random = job.fabric().random();
    // Cuts, shorter than the silence that means death, all the time.
    for (int cut = 0; cut < 30; ++cut) {
      const std::string a = names[random.Below(names.size())], b = names[random.Below(names.size())];
      if (a == b) continue;
      const Time at = job.fabric().now() + random.Between(0, 2000) * kMillisecond;
      job.fabric().Timer(at, [&job, a, b] { job.fabric().Cut(a, b); });
      job.fabric().Timer(at + random.Between(1, 500) * kMillisecond, [&job, a, b] { job.fabric().Heal(a, b); });
    }
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<float>> inputs;
      std::vector<Call*> calls;
      for (uint32_t w = 0; w < 3; ++w) {
        inputs.push_back(job.Numbers(8000));
        calls.push_back(job.worker(w).PushPull("t", inputs.back()));
        ASSERT_NE(calls.back(), nullptr) << job.worker(w).failure();
      }
      ASSERT_TRUE(job.RunUntilEnded(calls));
      for (const Call* call : calls) {
        ASSERT_TRUE(call->ok()) << call->outcome();
        ASSERT_EQ(call->Output<float>(), SimulatedJob::Sum(inputs));
      }
      job.RunFor(random.Between(0, 300) * kMillisecond);
    }
    job.RunFor(3 * kSecond);
    job.Finish();
  });
}

TEST(Trouble, ALinkThatStaysCutEndsTheSessionForAll) {
  ForEachSeed(150, [](uint64_t seed) {
    SimulatedJob job({.seed = seed, .workers = 3, .servers = 2});
    ASSERT_TRUE(job.Start());
    sim::Random& random = job.fabric().random();
    // Worker and server, worker and coordinator, or server and coordinator.
    const std::string a =
        seed % 3 == 2 ? "server" + std::to_string(random.Below(2)) : "worker" + std::to_string(random.Below(3));
    const std::string b = seed % 3 == 0 ? "server" + std::to_string(random.Below(2)) : "coordinator";
    job.fabric().Timer(job.fabric().now() + random.Between(0, 20'000) * 1000, [&] { job.fabric().Cut(a, b); });
    std::vector<Call*> running(3, nullptr);
    const Time begin = job.fabric().now();
    ASSERT_TRUE(job.RunUntil(
        [&] {
          bool all = true;
          for (uint32_t w = 0; w < 3; ++w) {
            SimulatedWorker& worker = job.worker(w);
            if (running[w] != nullptr && running[w]->ended()) running[w] = nullptr;
            if (running[w] == nullptr && worker.failure().ok() && random.Chance(0.01)) {
              running[w] = worker.PushPull("t", std::vector<float>(3000));
            }
            all = all && !worker.failure().ok() && running[w] == nullptr;
          }
          return all;
        },
        60 * kSecond));
    EXPECT_LE(job.fabric().now() - begin, 20 * kSecond);
    // Every other member is told which; a member that is cut off knows its own side of it.
    for (uint32_t w = 0; w < 3; ++w) {
      const std::string text(job.worker(w).failure().message());
      EXPECT_TRUE(text.find(a) != std::string::npos || text.find(b) != std::string::npos)
          << job.worker(w).name() << ": " << text;
    }
    job.CheckMemory();
  });
}

}  // namespace
}  // namespace byteps
