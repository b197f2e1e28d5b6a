#include "core/control/host_identity.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/control/control_socket.h"

namespace byteps {
namespace {

std::string ReadLine(const char* path) {
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return "";
  char text[256];
  const ssize_t size = ::read(fd.get(), text, sizeof(text));
  if (size <= 0) return "";
  std::string line(text, static_cast<size_t>(size));
  return line.substr(0, line.find('\n'));
}

// "ipc:[4026531839]"
std::string Namespace(const char* path) {
  char text[64];
  const ssize_t size = ::readlink(path, text, sizeof(text));
  return size <= 0 ? "" : std::string(text, static_cast<size_t>(size));
}

using AddressList = std::unique_ptr<struct addrinfo, decltype(&::freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, int port) {
  struct addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  struct addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError("\"" + host + "\": " + ::gai_strerror(error));
  return AddressList(found, &::freeaddrinfo);
}

std::string Numeric(const struct sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  return ::getnameinfo(address, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0 ? host : "";
}

absl::StatusOr<std::string> AddressOfInterface(const std::string& name) {
  struct ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return absl::InternalError(std::string("getifaddrs: ") + std::strerror(errno));
  const std::unique_ptr<struct ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::set<std::string> known;
  std::string v4, v6;
  for (const struct ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    known.insert(entry->ifa_name);
    if (name != entry->ifa_name) continue;
    if (entry->ifa_addr->sa_family == AF_INET && v4.empty()) {
      v4 = Numeric(entry->ifa_addr, sizeof(struct sockaddr_in));
    } else if (entry->ifa_addr->sa_family == AF_INET6 && v6.empty()) {
      v6 = Numeric(entry->ifa_addr, sizeof(struct sockaddr_in6));
    }
  }
  if (!v4.empty()) return v4;
  if (!v6.empty()) return v6;
  std::string names;
  for (const std::string& each : known) names += (names.empty() ? "" : ", ") + each;
  const char* what = known.count(name) != 0 ? ": this interface has no IP address" : ": no such interface is up";
  return absl::InvalidArgumentError("DMLC_INTERFACE=" + name + what + "; there are: " + names);
}

// Connecting a datagram socket asks the routing table and sends nothing.
absl::StatusOr<std::string> AddressOnRoute(const std::string& coordinator, int port) {
  absl::StatusOr<AddressList> addresses = Resolve(coordinator, port);
  if (!addresses.ok()) return Annotate(addresses.status(), "DMLC_PS_ROOT_URI (the coordinator's host)");
  int error = EAFNOSUPPORT;
  // "localhost" and names with both kinds of addresses: IPv4, whatever order the resolver prefers on this host.
  std::vector<const struct addrinfo*> entries;
  for (const struct addrinfo* entry = addresses->get(); entry != nullptr; entry = entry->ai_next) {
    entries.push_back(entry);
  }
  std::stable_partition(entries.begin(), entries.end(), [](const auto* entry) { return entry->ai_family == AF_INET; });
  for (const struct addrinfo* entry : entries) {
    const UniqueFd fd(::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, entry->ai_protocol));
    if (!fd || ::connect(fd.get(), entry->ai_addr, entry->ai_addrlen) != 0) {
      error = errno;
      continue;
    }
    const std::string address = LocalAddress(fd.get());
    if (!address.empty()) return address;
  }
  return absl::UnavailableError("no route to the coordinator \"" + coordinator + "\": " + std::strerror(error));
}

}  // namespace

control::Host HostIdentity(const std::string& id) {
  control::Host host;
  host.set_id(id);
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof(name) - 1) == 0) host.set_name(name);
  host.set_boot_id(ReadLine("/proc/sys/kernel/random/boot_id"));
  host.set_ipc_namespace(Namespace("/proc/self/ns/ipc"));
  host.set_pid_namespace(Namespace("/proc/self/ns/pid"));
  return host;
}

bool SameHost(const control::Host& one, const control::Host& other) { return HostDifference(one, other).empty(); }

std::string HostDifference(const control::Host& one, const control::Host& other) {
  if (one.boot_id().empty() || one.boot_id() != other.boot_id()) return "are on different hosts";
  const bool ipc = one.ipc_namespace() == other.ipc_namespace(), pid = one.pid_namespace() == other.pid_namespace();
  if (ipc && pid) return "";
  const char* where = ipc   ? "PID namespaces (containers: share one, as by --pid=host)"
                      : pid ? "IPC namespaces (containers: share one, as by --ipc=host)"
                            : "IPC and PID namespaces (containers: share them, as by --ipc=host --pid=host)";
  return std::string("are on one host in different ") + where;
}

std::string LinkOf(const control::Host& host) {
  if (!host.id().empty()) return "id " + host.id();
  return host.boot_id().empty() ? "" : "boot " + host.boot_id();
}

absl::StatusOr<std::string> OwnAddress(const OwnAddressOptions& options) {
  if (!options.node_host.empty()) {
    absl::StatusOr<AddressList> addresses = Resolve(options.node_host, options.port);
    if (!addresses.ok()) {
      return absl::InvalidArgumentError("DMLC_NODE_HOST=" + options.node_host + " is no address and no known name");
    }
    return Numeric((*addresses)->ai_addr, (*addresses)->ai_addrlen);
  }
  if (!options.interface.empty()) return AddressOfInterface(options.interface);
  return AddressOnRoute(options.coordinator, options.port);
}

std::string OwnAddressTrouble(const std::string& address) {
  struct ifaddrs* list = nullptr;
  if (address.empty() || ::getifaddrs(&list) != 0) return "";
  const std::unique_ptr<struct ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const struct ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const size_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (Numeric(entry->ifa_addr, static_cast<socklen_t>(size)) != address) continue;
    const std::string interface = "this host's own interface " + std::string(entry->ifa_name) + " (" + address + ") ";
    if ((entry->ifa_flags & IFF_UP) == 0) return interface + "is down";
    return (entry->ifa_flags & IFF_RUNNING) == 0 ? interface + "has no carrier" : "";
  }
  return "this host has lost its own address " + address + ": no interface has it";
}

}  // namespace byteps
