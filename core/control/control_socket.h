// control_socket.h - one established TCP connection that carries frames, on either side; never blocks.
//
//     ControlSocket socket(std::move(fd), kMaxHelloBytes);
//     poll(socket.fd(), POLLIN | (socket.wants_write() ? POLLOUT : 0))
//     absl::Status status = socket.Receive([&](const control::Envelope& envelope) { ...; return !closing; });
//     status = socket.Send(envelope);  status = socket.Flush();
//
// Send queues, and writes what the kernel takes at once. A queue over `kMaxQueuedBytes` is an error: the other side
// does not read. An error of any call ends the connection; a peer that has closed is UNAVAILABLE.
//
// Threads: one at a time.
#ifndef BYTEPS_CORE_CONTROL_CONTROL_SOCKET_H_
#define BYTEPS_CORE_CONTROL_CONTROL_SOCKET_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "core/base/unique_fd.h"
#include "core/control/control.pb.h"
#include "core/control/control_codec.h"

namespace byteps {

// "10.0.0.1:9000", "[::1]:9000"
std::string HostPort(const std::string& host, int port);
// The numeric address of the other end without its port; "" if it cannot be told.
std::string PeerAddress(int fd);
// The numeric address of this end.
std::string LocalAddress(int fd);
// Sets what every control connection wants: no delay of small messages, non-blocking, not inherited.
absl::Status PrepareControlSocket(int fd);

class ControlSocket {
 public:
  static constexpr size_t kMaxQueuedBytes = 2 * kMaxFrameBytes;

  ControlSocket(UniqueFd fd, size_t max_frame) : fd_(std::move(fd)), reader_(max_frame) {}

  int fd() const { return fd_.get(); }
  bool wants_write() const { return queued() > 0; }
  size_t queued() const { return queue_.size() - sent_; }
  void set_max_frame(size_t max_frame) { reader_.set_max_frame(max_frame); }

  // Reads what has arrived (a bounded part of it: a level-triggered poll comes back for the rest), and hands every
  // whole frame to `take`, until that returns false: then the rest of what was read is lost.
  absl::Status Receive(const std::function<bool(const control::Envelope&)>& take);

  absl::Status Send(const control::Envelope& envelope);
  absl::Status Flush();

 private:
  UniqueFd fd_;
  FrameReader reader_;
  std::string queue_;
  size_t sent_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_CONTROL_CONTROL_SOCKET_H_
