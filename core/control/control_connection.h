// control_connection.h - a member's TCP connection to the coordinator: made again until it stands, never blocking.
//
//     ControlConnection connection({.host = "10.0.0.1", .port = 9000}, &handler, now);
//     for (;;) {
//       struct pollfd poll_fd = {connection.fd(), connection.events(), 0};
//       poll(&poll_fd, 1, PollTimeout(now, connection.NextTimer()));
//       connection.Drive(Now());                  // handler: OnConnected, OnFrame, OnClosed
//     }
//
// An attempt that fails, and a connection that is lost, is told by OnClosed. If the handler then still WantsConnection,
// the next attempt follows after a pause that grows from `first_pause` to `longest_pause`, shortened by a random part,
// so that a thousand workers do not knock at the same moment. There is no last attempt: the owner of the connection has
// a deadline. The name of the coordinator is asked for anew each time, on a thread of its own
// (core/control/name_lookup.h); a resolver that does not answer within `attempt_timeout` is told by OnClosed, too, and
// waited for.
//
// Threads:   one at a time.
// Ownership: the handler must outlive the connection. It is called inside Drive only, and may call Send and Close.
#ifndef BYTEPS_CORE_CONTROL_CONTROL_CONNECTION_H_
#define BYTEPS_CORE_CONTROL_CONTROL_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/base/unique_fd.h"
#include "core/control/control.pb.h"
#include "core/control/control_socket.h"
#include "core/control/name_lookup.h"

namespace byteps {

class ControlConnectionHandler {
 public:
  virtual ~ControlConnectionHandler() = default;
  virtual void OnConnected() = 0;
  virtual void OnFrame(const control::Envelope& envelope) = 0;
  virtual void OnClosed(const absl::Status& why) = 0;
  // Asked after OnClosed: shall the next attempt be made?
  virtual bool WantsConnection() = 0;
};

struct ControlConnectionOptions {
  std::string host;  // name or numeric address, IPv4 or IPv6
  int port = 0;
  Time first_pause = 20 * kMillisecond;
  Time longest_pause = kSecond;
  Time attempt_timeout = 5 * kSecond;  // of one address
  std::string local_address;           // numeric, to connect from; empty: the system chooses
};

class ControlConnection {
 public:
  // The first attempt is made by the first Drive.
  ControlConnection(ControlConnectionOptions options, ControlConnectionHandler* handler, Time now);
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  // For poll(2); they change with every Drive and Send. -1: nothing to poll.
  int fd() const;
  short events() const;
  // When Drive must be called although nothing happened; kNever: no need.
  Time NextTimer() const;

  void Drive(Time now);

  // Queues a message; an error of the connection is told by the next Drive. Dropped without a connection.
  void Send(const control::Envelope& envelope);
  // Has the kernel taken everything that was sent?
  bool flushed() const { return !socket_.has_value() || !socket_->wants_write(); }
  bool connected() const { return socket_.has_value(); }
  // The numeric address of the coordinator, while connected.
  std::string peer_address() const { return socket_ ? PeerAddress(socket_->fd()) : ""; }
  // That of this end, likewise.
  std::string local_address() const { return socket_ ? LocalAddress(socket_->fd()) : ""; }

  // Numeric addresses: what the coordinator's name stood for at the last attempt.
  const std::vector<std::string>& known_addresses() const { return known_addresses_; }

  // Ends the connection and all attempts, without OnClosed.
  void Close();

 private:
  void Progress(Time now);
  void Attempt(Time now);
  void CheckLookup(Time now);
  void NextAddress(Time now);
  void CheckAttempt(Time now);
  void AttemptFailed(const std::string& why);
  void Established();
  void Lost(Time now, const absl::Status& why);
  void Pause(Time now);

  const ControlConnectionOptions options_;
  ControlConnectionHandler* const handler_;
  bool closed_ = false;
  bool driving_ = false;

  Time next_attempt_;
  Time pause_;
  std::unique_ptr<NameLookup> lookup_;    // asked for the addresses of this attempt
  std::vector<SocketAddress> addresses_;  // of this attempt, those not tried yet; the next one is the last
  std::vector<std::string> known_addresses_;
  UniqueFd attempt_;  // connecting
  std::string attempt_address_;
  Time attempt_deadline_ = kNever;  // of the connection to one address, or of the lookup
  std::string failures_;            // of this attempt

  std::optional<ControlSocket> socket_;
  absl::Status broken_;  // found by Send
};

}  // namespace byteps

#endif  // BYTEPS_CORE_CONTROL_CONTROL_CONNECTION_H_
