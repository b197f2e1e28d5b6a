// job_options.h - the size, the memory and the seed of a simulated job.
#ifndef BYTEPS_TESTS_SIM_JOB_OPTIONS_H_
#define BYTEPS_TESTS_SIM_JOB_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "core/worker/tensor/stage.h"
#include "transport_plugins/sim/options.h"

namespace byteps {

struct JobOptions {
  uint64_t seed = 1;

  // Who.
  uint32_t workers = 2;
  uint32_t workers_per_host = 1;
  std::vector<uint32_t> hosts;  // workers of each host, if they differ; else empty
  uint32_t servers = 1;
  uint32_t lanes = 1;            // of each server
  std::optional<bool> in_place;  // may servers read and write the memory of workers? Unset: every third seed
  bool colocated = false;        // server i shares host and link with worker i, as far as there are workers
  std::string token = "a secret";
  std::string groups = "none";  // BYTEPS_GROUPS
  bool asynchronous = false;    // BYTEPS_ENABLE_ASYNC
  uint64_t staleness = 0;       // 1 + BYTEPS_STALENESS; 0: unset
  bool local = false;           // workers of one host reduce among themselves; without servers they must
  bool copy_refused = false;    // but some cannot read the memory of the others

  // Stages more, each before the one of this name ("": before all), made from a seed by each worker.
  struct AddedStage {
    std::string before;
    std::function<std::unique_ptr<Stage>(uint64_t seed)> make;
  };
  std::vector<AddedStage> stages;

  // Data plane.
  uint64_t partition_bytes = 4096;
  uint64_t slot_bytes = 4096;
  uint32_t slots_per_peer = 2;       // that a server lane lends each worker
  uint64_t server_memory = 1 << 20;  // of each lane
  uint64_t inline_bytes = 256;
  uint32_t window_slots = 2;  // that a worker lends each server lane, where results cannot land in place
  uint32_t bounce_blocks = 2;
  uint64_t credit = 0;  // bytes that may be under way from one worker; 0: unlimited
  // "fifo", "priority" or "credit" instead of chaos, and what it is given as BYTEPS_SCHEDULING_CREDIT.
  std::string scheduler;
  std::optional<std::string> scheduling_credit;
  bool schedule_results = false;  // BYTEPS_SERVER_ENABLE_SCHEDULE, with `scheduler`

  // Network. `adverse`: links and endpoints are drawn from the seed, each node its own, as bad as the contract allows.
  bool adverse = true;
  sim::LinkOptions link;
  sim::EndpointOptions endpoint;
  std::map<std::string, uint64_t> rates;  // of single nodes, "server3", in place of endpoint.bytes_per_second
  Time slowness = 50'000;                 // of each process (see Node)
  Time start_spread = 20 * kMillisecond;  // each process starts within this time
  std::map<std::string, Time> start_at;   // but these then: "worker1", "server0", "coordinator"
  Time down_delay = 5 * kMillisecond;

  // Patience.
  Time start_timeout = 60 * kSecond;
  Time heartbeat = 500 * kMillisecond;
  Time peer_timeout = 3 * kSecond;
  Time linger = 2 * kSecond;

  std::vector<std::string>* warnings = nullptr;  // where to write what any member warns of
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_JOB_OPTIONS_H_
