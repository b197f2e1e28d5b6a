// simulated_job.h - a whole job in one thread, from one seed: coordinator, servers, workers, and the network between.
//
//     SimulatedJob job({.seed = SeedOr(seed), .workers = 3, .servers = 2});
//     ASSERT_TRUE(job.Start());
//     Call* a = job.worker(0).PushPull("w", x); ...
//     ASSERT_TRUE(job.RunUntil([&] { return a->ended() && b->ended(); }));
//     job.Finish();                       // every member leaves; checks that nothing is left behind
//
// Workers are numbered in the order of their ranks. What these classes add to the step functions of core and server is
// what the shells around them add in real processes: framing, reconnecting, and who is told what.
#ifndef BYTEPS_TESTS_SIM_SIMULATED_JOB_H_
#define BYTEPS_TESTS_SIM_SIMULATED_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "tests/sim/job_options.h"
#include "tests/sim/simulated_coordinator.h"
#include "tests/sim/simulated_server.h"
#include "tests/sim/simulated_worker.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {

class SimulatedJob {
 public:
  explicit SimulatedJob(JobOptions options);
  ~SimulatedJob();

  sim::SimFabric& fabric() { return fabric_; }
  const JobOptions& options() const { return options_; }
  SimulatedWorker& worker(uint32_t index) { return *workers_[index]; }
  SimulatedServer& server(uint32_t index) { return *servers_[index]; }
  SimulatedCoordinator& coordinator() { return *coordinator_; }
  uint32_t workers() const { return static_cast<uint32_t>(workers_.size()); }
  // The rank order fold of these inputs in float32: what push_pull with BPS_SUM must give, to the bit.
  static std::vector<float> Sum(const std::vector<std::vector<float>>& inputs);
  // `count` numbers whose sum depends on its order.
  std::vector<float> Numbers(size_t count);

  // Every member is there and connected.
  [[nodiscard]] bool Start(Time limit = 100 * kSecond);
  // Until done(), or `limit` of virtual time has passed: then false, and what every member waits for is on stderr.
  [[nodiscard]] bool RunUntil(const std::function<bool()>& done, Time limit = 120 * kSecond);
  // The same, until these have ended.
  [[nodiscard]] bool RunUntilEnded(const std::vector<Call*>& calls, Time limit = 120 * kSecond);
  // Runs this long.
  void RunFor(Time span);

  // All workers leave, and open a session of the same name again: the next generation. The old ones are gone from
  // worker(), but not destroyed.
  void Reopen();
  // Every member says goodbye; the servers hold nothing any more, and are sent home. Fails the test otherwise.
  void Finish();
  // No worker's memory was touched after the end of its operation. Fails the test otherwise.
  void CheckMemory();
  // What every member is at.
  std::string Describe();

 private:
  void AddWorkers();
  void Leave();

  JobOptions options_;
  sim::SimFabric fabric_;
  Logger log_;
  std::unique_ptr<SimulatedCoordinator> coordinator_;
  std::vector<std::unique_ptr<SimulatedServer>> servers_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::vector<std::unique_ptr<SimulatedWorker>> retired_;
  uint32_t life_ = 0;
};

// Runs `test` with `count` seeds from 1 on (under sanitizers with a part of them; BYTEPS_SIM_SEEDS: with that many), or
// with BYTEPS_SIM_SEED alone; stops at the first that fails, and names it.
void ForEachSeed(uint64_t count, const std::function<void(uint64_t seed)>& test);

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_SIMULATED_JOB_H_
