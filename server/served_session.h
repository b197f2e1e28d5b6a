// served_session.h - one session as a lane of the reduction server sees it: its workers, and its partitions.
//
// Threads: those of its Reducer, which owns it.
#ifndef BYTEPS_SERVER_SERVED_SESSION_H_
#define BYTEPS_SERVER_SERVED_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/endpoint.h"
#include "server/contributors.h"
#include "server/part_table.h"

namespace byteps {

struct ServedWorker {
  PeerId peer = 0;  // the worker's member id
  std::string description;
};

struct ServedSession {
  explicit ServedSession(size_t most_idle_parts) : parts(most_idle_parts) {}
  uint64_t id = 0;
  uint64_t slot_bytes = 0;
  uint32_t slots = 0;
  std::vector<ServedWorker> workers;  // by rank
  Contributors contributors{0};
  PartTable parts;
  absl::Status failure;
  bool ending = false;
  size_t links = 0;  // of workers that the endpoint has not removed
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_SERVED_SESSION_H_
