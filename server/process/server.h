// server.h - the reduction server of one process: its lanes, and what the control plane tells them.
//
//     ServerOptions options = ServerOptionsFrom(config, token);
//     auto server = Server::Start(options, [&](uint32_t lane) { return registry.OpenTransport(...); }, log);
//     server->FillHello(&hello);                      // lanes, slot_bytes
//     server->OnEpoch(epoch, own_member);             // a session begins
//     server->OnSessionEnded(session_id);             // ... and is forgotten, in order or not
//     poll(server->wake_fd()) ...; for (const BrokenSession& broken : server->TakeBroken()) tell the coordinator
//
// The control client feeds it on the main thread; all work is done by the lanes' threads.
//
// Threads:   one at a time, but TakeBroken and stats(), which may be called on any thread.
// Errors:    Start fails if a transport cannot be opened, or memory or threads do not fit. Later errors concern a
//            session and come out of TakeBroken, at most once for each.
#ifndef BYTEPS_SERVER_PROCESS_SERVER_H_
#define BYTEPS_SERVER_PROCESS_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/first_error.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/config/config.h"
#include "core/control/control.pb.h"
#include "core/plugin/plugin_calls.h"
#include "core/plugin/transport.h"
#include "core/plugin/watchdog.h"
#include "server/reducer/lane.h"

namespace byteps {

struct ServerOptions {
  uint32_t lanes = 1;
  uint64_t memory = 0;    // of all lanes together
  Time plugin_limit = 0;  // how long a lane may be in one call of a plugin; 0: for ever
  LaneOptions lane;       // of each; `lane` and `memory` of its reducer are filled here
};

// From BYTEPS_SERVER_ENGINE_THREAD, BYTEPS_SERVER_MEMORY, BYTEPS_SLOT_BYTES and the rest of the table.
ServerOptions ServerOptionsFrom(const Config& config, const std::string& token);

// BYTEPS_SERVER_ENGINE_THREAD where it is not set: half of the cores, 1 to 4.
uint32_t DefaultLanes(uint32_t cores);

class Server {
 public:
  // `calls`: of the lane's thread, for whatever plugin it will call.
  using OpenTransport = std::function<absl::StatusOr<Transport>(uint32_t lane, PluginCalls* calls)>;

  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, const OpenTransport& open,
                                                       const Logger& log);
  ~Server();

  // The server's part of Hello.
  void FillHello(control::Hello* hello) const;

  void OnEpoch(const control::Epoch& epoch, uint32_t own_member);
  void OnSessionEnded(uint64_t session);

  // A lane is inside a plugin that does not return; OK: none is. Then Stop leaves the lanes behind.
  absl::Status stuck() const { return stuck_.any() ? stuck_.Get() : absl::OkStatus(); }

  // Readable when TakeBroken has something, or a lane is stuck.
  int wake_fd() const { return wake_.get(); }
  std::vector<BrokenSession> TakeBroken();

  // Ends all lanes and tells the log what was used.
  void Stop();

  // Sums over the lanes.
  ReducerStats stats() const;
  // "memory: 12 MiB of 4 GiB at most in use; ...", for the log.
  std::string DescribeUse() const;

 private:
  Server(const ServerOptions& options, const Logger& log)
      : options_(options), log_(log), watchdog_("this server", options.plugin_limit, &log_) {}
  void OnStuck(const absl::Status& why);
  void Wake();
  void OnBroken(const BrokenSession& broken);

  const ServerOptions options_;
  Logger log_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<BrokenSession> broken_;  // under mutex_
  std::set<uint64_t> known_broken_;    // under mutex_: sessions that were told and have not ended
  FirstError stuck_;
  std::vector<std::unique_ptr<PluginCalls>> calls_;  // one for each lane
  std::vector<std::unique_ptr<Lane>> lanes_;         // their threads use all of the above
  Watchdog watchdog_;                                // last: it uses all of this
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_PROCESS_SERVER_H_
