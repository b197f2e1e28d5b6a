// reduction_world.h - one Reducer and its scripted workers on the simulated fabric.
//
//     ReductionWorld world({.seed = 3, .memory = 1 << 20});
//     ReductionSession* session = world.Open(3);          // three workers; waits until all links are ready
//     session->worker(0).Push(ask);
//     ASSERT_TRUE(world.Run([&] { return session->worker(0).ended(ask); }));
#ifndef BYTEPS_TESTS_SERVER_REDUCER_REDUCTION_WORLD_H_
#define BYTEPS_TESTS_SERVER_REDUCER_REDUCTION_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/control/control.pb.h"
#include "server/reducer/reducer.h"
#include "tests/server/reducer/scripted_worker.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {

struct ReductionWorldOptions {
  uint64_t seed = 0;  // 0: a good network; else as bad a one as the contract allows
  uint64_t memory = 16 << 20;
  uint64_t slot_bytes = 16384;
  uint32_t slots_per_peer = 4;
  uint64_t inline_bytes = 1024;
  size_t most_idle_parts = 1 << 17;
  uint32_t lent_slots = 2;
  uint32_t more_flags = 0;  // capabilities of the transport
  Time map_delay = 0;       // until memory that was shown can be mapped
  Time stall_warning = kNever;
  bool asynchronous = false;  // BYTEPS_ENABLE_ASYNC
  uint64_t staleness = 0;     // as an epoch has it
  // The reducer's transport, if it is not simply the fabric's; must outlive the world.
  const bps_transport_table* (*wrap)(const bps_transport_table* table) = nullptr;
};

class ReductionSession {
 public:
  control::Epoch epoch;
  std::vector<std::unique_ptr<ScriptedWorker>> workers;
  ScriptedWorker& worker(uint32_t rank) { return *workers[rank]; }
  uint64_t id() const { return epoch.session_id(); }
};

class ReductionWorld {
 public:
  explicit ReductionWorld(const ReductionWorldOptions& options = {});

  // A session of `size` workers, whose links are ready; nullptr if that does not come about.
  ReductionSession* Open(uint32_t size, std::vector<uint32_t> groups = {});
  // The same, without waiting, and whatever the reducer answers.
  absl::Status Begin(uint32_t size, const std::vector<uint32_t>& groups, ReductionSession** session);

  // Polls every member every 20 us until done, or until so much (simulated) time has passed.
  bool Run(const std::function<bool()>& done, Time limit = 120 * kSecond);

  sim::SimFabric& fabric() { return *fabric_; }
  Reducer& reducer() { return *reducer_; }
  Time now() const { return fabric_->now(); }
  // Workers of sessions that have ended may be taken out; their endpoints close.
  void Remove(ReductionSession* session);

 private:
  const ReductionWorldOptions options_;
  std::unique_ptr<sim::SimFabric> fabric_;
  sim::EndpointOptions transport_;
  EndpointOptions endpoint_;
  Logger log_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<std::unique_ptr<ReductionSession>> sessions_;
  uint64_t next_session_ = 100;
  uint32_t next_member_ = 2;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_REDUCER_REDUCTION_WORLD_H_
