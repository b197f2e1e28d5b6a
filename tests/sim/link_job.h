// link_job.h - a job on links of a known rate, with processors that cost next to nothing and the defaults of a real
// job.
#ifndef BYTEPS_TESTS_SIM_LINK_JOB_H_
#define BYTEPS_TESTS_SIM_LINK_JOB_H_

#include <cstdint>

#include "abi/transport.h"
#include "tests/sim/job_options.h"

namespace byteps {

// 200 Mbit/s each way for every member, TCP's latency, and nothing configured: the cut adapts, `credit` schedules.
inline JobOptions LinkJob(uint32_t workers, uint32_t servers) {
  JobOptions options;
  options.adverse = false;
  options.in_place = false;
  options.workers = workers;
  options.servers = servers;
  options.partition_bytes = 0;
  options.slot_bytes = 512 << 10;
  options.slots_per_peer = 8;
  options.server_memory = 64 << 20;
  options.inline_bytes = 8192;
  options.scheduler = "credit";
  options.slowness = 20 * sim::kMicrosecond;
  options.endpoint.flags |= BPS_TRANSPORT_CHEAP_REG;
  options.endpoint.bytes_per_second = 25'000'000;
  options.link.latency = 100 * sim::kMicrosecond;
  return options;
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_LINK_JOB_H_
