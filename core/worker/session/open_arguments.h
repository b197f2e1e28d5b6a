// open_arguments.h - what a session is opened with: the arguments of bps_open, which win, and the environment.
//
//     absl::StatusOr<OpenArguments> arguments = OpenArguments::Read(args);
//     if (!arguments->wrong.ok()) ...     // the job is told before this worker gives up
//
// Threads: a value.
#ifndef BYTEPS_CORE_WORKER_SESSION_OPEN_ARGUMENTS_H_
#define BYTEPS_CORE_WORKER_SESSION_OPEN_ARGUMENTS_H_

#include <cstdint>
#include <string>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/config/config.h"

namespace byteps {

// Where this worker is in its job.
struct WorkerPlace {
  int32_t host_index = 0;
  int32_t num_hosts = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t num_servers = 0;
};

struct OpenArguments {
  Config config;
  WorkerPlace place;
  std::string name;  // of the session
  // What is wrong with them. Then `config` has what is readable all the same, so that the coordinator can be told.
  absl::Status wrong;

  // An error: it cannot be reported to others.
  static absl::StatusOr<OpenArguments> Read(const bps_open_args& args);

  // What was asked for, as lines of level debug: the release, the place, and every variable that is not its default.
  void Tell(const Logger& log) const;

  // The only worker of its job, which needs no coordinator?
  bool alone() const;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SESSION_OPEN_ARGUMENTS_H_
