#include "server/process/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/control/control_socket.h"

namespace byteps {
namespace {

constexpr int kBacklog = 1024;

// 0, or the error.
int TryListen(const struct addrinfo& entry, bool dual, UniqueFd* fd) {
  fd->Reset(::socket(entry.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!*fd) return errno;
  const int one = 1, zero = 0;
  // A coordinator that is started again shall not wait for the last one's connections to be forgotten.
  if (::setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0) return errno;
  if (entry.ai_family == AF_INET6) {
    const int only = dual ? zero : one;
    if (::setsockopt(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only)) != 0) return errno;
  }
  if (::bind(fd->get(), entry.ai_addr, entry.ai_addrlen) != 0) return errno;
  return ::listen(fd->get(), kBacklog) != 0 ? errno : 0;
}

std::string Advice(int error) {
  switch (error) {
    case EADDRINUSE:
      return "; another program, or the coordinator of another job, has this port: choose another DMLC_PS_ROOT_PORT";
    case EADDRNOTAVAIL:
      return "; that is no address of this host: set DMLC_PS_ROOT_URI to one, or DMLC_USE_KUBERNETES=1 to listen on "
             "all";
    case EACCES:
      return "; ports below 1024 are for root alone: choose another DMLC_PS_ROOT_PORT";
    default:
      return "";
  }
}

}  // namespace

absl::StatusOr<UniqueFd> Listen(const ListenOptions& options) {
  const std::string where = HostPort(options.all_addresses ? "::" : options.host, options.port);
  const std::string what = "cannot listen at " + where + " (DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT): ";
  struct addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  struct addrinfo* list = nullptr;
  const char* host = options.all_addresses ? nullptr : options.host.c_str();
  const int failed = ::getaddrinfo(host, std::to_string(options.port).c_str(), &hints, &list);
  if (failed != 0) return absl::InvalidArgumentError(what + ::gai_strerror(failed));
  const std::unique_ptr<struct addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  // On all addresses IPv6 first: such a socket serves IPv4 as well. A name that has both is its IPv4 address, here and
  // for the members (core/control/host_identity.h).
  const int first = options.all_addresses ? AF_INET6 : AF_INET;
  for (const int family : {first, first == AF_INET ? AF_INET6 : AF_INET}) {
    for (const struct addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
      if (entry->ai_family != family) continue;
      UniqueFd fd;
      error = TryListen(*entry, options.all_addresses, &fd);
      if (error == 0) return fd;
    }
  }
  return absl::UnavailableError(what + std::strerror(error) + Advice(error));
}

absl::StatusOr<UniqueFd> InheritListener(int fd) {
  const std::string what = "BYTEPS_COORDINATOR_FD=" + std::to_string(fd) + ": ";
  int listening = 0;
  socklen_t size = sizeof(listening);
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0) {
    return absl::InvalidArgumentError(what + std::strerror(errno) + "; expected an inherited listening socket");
  }
  UniqueFd owned(fd);
  if (listening == 0) return absl::InvalidArgumentError(what + "this socket does not listen");
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InternalError(what + std::strerror(errno));
  }
  return owned;
}

std::string ListenerAddress(int fd) {
  struct sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  int port = 0;
  if (::getsockname(fd, reinterpret_cast<struct sockaddr*>(&address), &size) == 0) {
    if (address.ss_family == AF_INET) {
      port = ntohs(reinterpret_cast<const struct sockaddr_in*>(&address)->sin_port);
    } else if (address.ss_family == AF_INET6) {
      port = ntohs(reinterpret_cast<const struct sockaddr_in6*>(&address)->sin6_port);
    }
  }
  return HostPort(LocalAddress(fd), port);
}

}  // namespace byteps
