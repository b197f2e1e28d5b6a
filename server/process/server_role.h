// server_role.h - DMLC_ROLE=server: a reduction server as configured by the environment.
#ifndef BYTEPS_SERVER_PROCESS_SERVER_ROLE_H_
#define BYTEPS_SERVER_PROCESS_SERVER_ROLE_H_

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "server/process/stop_signal.h"

namespace byteps {

// Registers with the coordinator and serves until it ends the job or a stop signal has come. An error if it cannot
// start, is refused, or loses the coordinator.
absl::Status RunServer(const Config& config, const Logger& log, StopSignal* stop);

// For a server whose configuration is wrong (`why`): tells the coordinator, so far as `readable` says where it is.
// Returns what every member hears of it, or `why`.
absl::Status RefuseServer(const Config& readable, const absl::Status& why, const Logger& log, StopSignal* stop);

}  // namespace byteps

#endif  // BYTEPS_SERVER_PROCESS_SERVER_ROLE_H_
