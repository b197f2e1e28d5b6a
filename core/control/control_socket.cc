#include "core/control/control_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace byteps {
namespace {

// Of one call of Receive: enough for a large frame in a few rounds, little enough that others get their turn.
constexpr size_t kReadBytes = size_t{256} << 10;

absl::Status Broken(const char* what, int error) {
  return absl::UnavailableError(std::string(what) + ": " + std::strerror(error));
}

std::string Numeric(const struct sockaddr_storage& address, socklen_t size) {
  // An IPv4 peer of an IPv6 socket is an IPv4 peer.
  if (address.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const struct sockaddr_in6*>(&address);
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
      char text[INET_ADDRSTRLEN];
      return inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof(text)) == nullptr ? "" : text;
    }
  }
  char host[NI_MAXHOST];
  const auto* generic = reinterpret_cast<const struct sockaddr*>(&address);
  if (::getnameinfo(generic, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

}  // namespace

std::string HostPort(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string PeerAddress(int fd) {
  struct sockaddr_storage address;
  socklen_t size = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<struct sockaddr*>(&address), &size) != 0) return "";
  return Numeric(address, size);
}

std::string LocalAddress(int fd) {
  struct sockaddr_storage address;
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<struct sockaddr*>(&address), &size) != 0) return "";
  return Numeric(address, size);
}

absl::Status PrepareControlSocket(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return Broken("fcntl(O_NONBLOCK)", errno);
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) return Broken("fcntl(FD_CLOEXEC)", errno);
  const int one = 1;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0) return Broken("TCP_NODELAY", errno);
  return absl::OkStatus();
}

absl::Status ControlSocket::Receive(const std::function<bool(const control::Envelope&)>& take) {
  char bytes[16384];
  absl::Status end;
  for (size_t total = 0; total < kReadBytes;) {
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof(bytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got < 0) {
      end = Broken("the connection broke", errno);
      break;
    }
    if (got == 0) {
      end = absl::UnavailableError("the other side has closed the connection");
      break;
    }
    reader_.Append(bytes, static_cast<size_t>(got));
    total += static_cast<size_t>(got);
    if (static_cast<size_t>(got) < sizeof(bytes)) break;
  }
  // Also after the end: the final message of the other side says more than the end itself.
  control::Envelope envelope;
  while (true) {
    const absl::StatusOr<bool> more = reader_.Next(&envelope);
    if (!more.ok()) return more.status();
    if (!*more || !take(envelope)) return end;
  }
}

absl::Status ControlSocket::Send(const control::Envelope& envelope) {
  absl::StatusOr<std::string> frame = EncodeFrame(envelope);
  if (!frame.ok()) return frame.status();
  if (queued() + frame->size() > kMaxQueuedBytes) {
    return absl::UnavailableError("the other side does not read: " + std::to_string(queued()) + " bytes wait for it");
  }
  if (sent_ > queue_.size() / 2 || !wants_write()) {
    queue_.erase(0, sent_);
    sent_ = 0;
  }
  queue_.append(*frame);
  return Flush();
}

absl::Status ControlSocket::Flush() {
  while (wants_write()) {
    const ssize_t sent = ::send(fd_.get(), queue_.data() + sent_, queued(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (sent < 0) return Broken("the connection broke", errno);
    sent_ += static_cast<size_t>(sent);
  }
  // One large message shall not hold its memory for the life of the connection.
  if (queue_.capacity() > kMaxHelloBytes) std::string().swap(queue_);
  queue_.clear();
  sent_ = 0;
  return absl::OkStatus();
}

}  // namespace byteps
