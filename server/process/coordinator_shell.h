// coordinator_shell.h - sockets and a clock around the coordinator: one thread, one poll(2).
//
//     CoordinatorShell shell(std::move(listener), options, log);
//     absl::Status status = shell.Run(&stop);           // until the job is over, or a stop signal has come
//
// No caller can block it or use it up: sockets never block, what one connection may send at once, may have queued and
// may take to prove what it is, is bounded, and of those that have not said it only `kMaxStrangers` are kept (the
// newest).
//
// A connection that is closed takes its last message first: the shell sends, says that no more will come, and waits
// (not for long) until the other side has closed, too. Closing with unread input would make the kernel throw it away.
//
// A process that was killed may have forked: its child holds the connection open, and nothing is ever heard. So of
// members on this host the process itself is watched, too (pidfd); of others the peer timeout decides.
//
// Threads:   one.
// Ownership: the log must outlive it.
#ifndef BYTEPS_SERVER_PROCESS_COORDINATOR_SHELL_H_
#define BYTEPS_SERVER_PROCESS_COORDINATOR_SHELL_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/base/unique_fd.h"
#include "core/control/control_socket.h"
#include "server/membership/coordinator.h"
#include "server/process/stop_signal.h"

namespace byteps {

class CoordinatorShell final : private CoordinatorHandler {
 public:
  static constexpr size_t kMaxStrangers = 256;

  CoordinatorShell(UniqueFd listener, CoordinatorOptions options, const Logger* log);
  ~CoordinatorShell() override;

  // A pipe; once it has ended, the coordinator waits for no further session. Before Run().
  void LingerWhile(UniqueFd pipe) { linger_while_ = std::move(pipe); }

  // UNAVAILABLE: sockets or memory have failed altogether. A job that fails is no error of the coordinator.
  absl::Status Run(StopSignal* stop);

  const Coordinator& coordinator() const { return coordinator_; }

 private:
  struct Link;

  void Send(ConnectionId connection, const control::Envelope& envelope) override;
  void OnRegistered(ConnectionId connection, const control::Hello& hello) override;
  void Close(ConnectionId connection) override;

  Time NextTimer() const;
  void Accept();
  bool RefuseNext(const std::string& why);
  void DropOldestStranger(const char* why);
  void Progress(ConnectionId id, Link* link);
  void CheckHeld(ConnectionId id, Link* link);
  void ProgressClosing(Link* link);
  void Sweep();
  void Finish();

  UniqueFd listener_;
  UniqueFd linger_while_;
  UniqueFd spare_;  // to be given up for one that can only be told that there is no room
  const Logger* const log_;
  const control::Host host_;
  Time now_;
  Time accept_again_ = 0;    // out of descriptors until then
  Time complain_again_ = 0;  // ... and said so
  std::map<ConnectionId, std::unique_ptr<Link>> links_;
  ConnectionId last_link_ = 0;
  size_t strangers_ = 0;
  Coordinator coordinator_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_PROCESS_COORDINATOR_SHELL_H_
