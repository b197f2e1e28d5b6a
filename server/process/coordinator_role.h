// coordinator_role.h - DMLC_ROLE=scheduler: the coordinator as configured by the environment.
#ifndef BYTEPS_SERVER_PROCESS_COORDINATOR_ROLE_H_
#define BYTEPS_SERVER_PROCESS_COORDINATOR_ROLE_H_

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "server/process/stop_signal.h"

namespace byteps {

// Listens, and serves until the job is over or a stop signal has come.
absl::Status RunCoordinator(const Config& config, const Logger& log, StopSignal* stop);

// Where it cannot coordinate, for `why`: tells so to each member that comes, at most as long as one of the same start
// may be late (a minute), and gives `why`, at the end of the words that they have heard. At once, if no member can
// come: where it cannot listen, or bpslaunch, which ends the others, has opened its socket. `readable`: as much of the
// configuration as can be read.
absl::Status RefuseToCoordinate(const Config& readable, const absl::Status& why, const Logger& log, StopSignal* stop);

}  // namespace byteps

#endif  // BYTEPS_SERVER_PROCESS_COORDINATOR_ROLE_H_
