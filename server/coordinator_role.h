// coordinator_role.h - DMLC_ROLE=scheduler: the coordinator as configured by the environment.
#ifndef BYTEPS_SERVER_COORDINATOR_ROLE_H_
#define BYTEPS_SERVER_COORDINATOR_ROLE_H_

#include "absl/status/status.h"
#include "core/config.h"
#include "core/log.h"
#include "server/stop_signal.h"

namespace byteps {

// Listens, and serves until the job is over or a stop signal has come.
absl::Status RunCoordinator(const Config& config, const Logger& log, StopSignal* stop);

}  // namespace byteps

#endif  // BYTEPS_SERVER_COORDINATOR_ROLE_H_
