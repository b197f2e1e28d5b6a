// served_session.h - one session as a lane of the reduction server sees it: its workers, and its partitions.
//
// Threads: those of its Reducer, which owns it.
#ifndef BYTEPS_SERVER_REDUCER_SERVED_SESSION_H_
#define BYTEPS_SERVER_REDUCER_SERVED_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"
#include "server/reducer/contributors.h"
#include "server/reducer/kept_value.h"
#include "server/reducer/part_table.h"
#include "server/reducer/pool.h"
#include "server/reducer/round.h"

namespace byteps {

struct ServedWorker {
  PeerId peer = 0;  // the worker's member id
  std::string description;
};

// What a lane has for each of its sessions.
struct SessionLimits {
  uint64_t slot_bytes = 0;      // at most
  uint32_t slots_per_peer = 0;  // fewer where memory is short
  size_t most_idle_parts = 0;
};

struct ServedSession {
  explicit ServedSession(size_t most_idle_parts) : parts(most_idle_parts) {}
  // The session of this membership; its workers' windows are reserved in `pool`. Without memory for them:
  // RESOURCE_EXHAUSTED, and nothing is reserved.
  static absl::StatusOr<std::unique_ptr<ServedSession>> Make(const control::Epoch& epoch, const SessionLimits& limits,
                                                             Pool* pool);
  // Whom this server is to connect to for the worker of this rank; lane, address and local_id are the lane's to add.
  PeerSpec LinkTo(const control::Epoch& epoch, uint32_t rank, const control::Member& self) const;

  uint64_t id = 0;
  uint64_t slot_bytes = 0;
  uint32_t slots = 0;
  std::vector<ServedWorker> workers;  // by rank
  Contributors contributors{0};
  // Whose result goes first. Each lane of a session begins elsewhere: results of one row of parts are ready on all of
  // them at the same time, and would share the first worker's link (core/worker/tensor/send_order.h).
  uint32_t first_served = 0;
  PartTable parts;
  // Asynchronous tensors: rounds of each worker, and the values that are kept.
  bool asynchronous = false;
  uint64_t staleness = 0;  // 1 + how many pushes a worker may be ahead of the slowest; 0: no bound
  std::vector<std::unique_ptr<PartTable>> own_parts;  // by rank
  KeptValues kept;
  PartTable& PartsOf(uint32_t rank, bool own) { return own ? *own_parts[rank] : parts; }
  absl::Status failure;
  bool ending = false;
  size_t links = 0;  // of workers that the endpoint has not removed
};

// The worker that gave a contribution, and gets its result.
const ServedWorker& WorkerOf(const Round& round, uint32_t index);

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_SERVED_SESSION_H_
