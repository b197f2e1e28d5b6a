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
#include "core/base/time_text.h"
#include "core/base/unique_fd.h"
#include "core/control/control_socket.h"
#include "core/control/name_lookup.h"

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

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, const OwnAddressOptions& options) {
  const NameLookup lookup(host, options.port);
  if (!lookup.Wait(After(Now(), options.patience))) {
    return absl::DeadlineExceededError("\"" + host + "\": the resolver has not answered within " +
                                       SecondsText(options.patience));
  }
  if (!lookup.status().ok()) return lookup.status();
  return lookup.addresses();
}

// Addresses that do not name one host. (0.0.0.0 and :: are refused by the transports, which could listen there.)
const char* NotOneHost(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    const uint32_t bits = ntohl(reinterpret_cast<const struct sockaddr_in*>(&address.bytes)->sin_addr.s_addr);
    if (IN_MULTICAST(bits)) return "a multicast address";
    if (bits == INADDR_BROADCAST) return "the broadcast address";
  } else if (address.family() == AF_INET6) {
    if (IN6_IS_ADDR_MULTICAST(&reinterpret_cast<const struct sockaddr_in6*>(&address.bytes)->sin6_addr)) {
      return "a multicast address";
    }
  }
  return nullptr;
}

absl::StatusOr<std::string> NamedAddress(const OwnAddressOptions& options) {
  const absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(options.node_host, options);
  if (addresses.status().code() == absl::StatusCode::kDeadlineExceeded) {
    return absl::UnavailableError("DMLC_NODE_HOST=" + std::string(addresses.status().message()));
  }
  if (!addresses.ok() || addresses->empty()) {
    return absl::InvalidArgumentError("DMLC_NODE_HOST=" + options.node_host + " is no address and no known name");
  }
  if (const char* what = NotOneHost(addresses->front())) {
    return absl::InvalidArgumentError("DMLC_NODE_HOST=" + options.node_host + " is " + what +
                                      ": an address of this host is expected, which the others can call");
  }
  return addresses->front().text;
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
absl::StatusOr<std::string> AddressOnRoute(const OwnAddressOptions& options) {
  absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(options.coordinator, options);
  if (!addresses.ok()) {
    return absl::UnavailableError("DMLC_PS_ROOT_URI (the coordinator's host): " +
                                  std::string(addresses.status().message()));
  }
  int error = EAFNOSUPPORT;
  // "localhost" and names with both kinds of addresses: IPv4, whatever order the resolver prefers on this host.
  std::stable_partition(addresses->begin(), addresses->end(),
                        [](const SocketAddress& address) { return address.family() == AF_INET; });
  for (const SocketAddress& address : *addresses) {
    const UniqueFd fd(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd || ::connect(fd.get(), address.get(), address.size) != 0) {
      error = errno;
      continue;
    }
    const std::string own = LocalAddress(fd.get());
    if (!own.empty()) return own;
  }
  return absl::UnavailableError("no route to the coordinator \"" + options.coordinator + "\": " + std::strerror(error));
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
  if (one.ipc_namespace() == other.ipc_namespace()) return "";
  return "are on one host in different IPC namespaces (containers: share one, as by --ipc=host)";
}

bool SamePids(const control::Host& one, const control::Host& other) {
  return !one.boot_id().empty() && one.boot_id() == other.boot_id() && !one.pid_namespace().empty() &&
         one.pid_namespace() == other.pid_namespace();
}

std::string LinkOf(const control::Host& host) {
  if (!host.id().empty()) return "id " + host.id();
  return host.boot_id().empty() ? "" : "boot " + host.boot_id();
}

absl::StatusOr<std::string> OwnAddress(const OwnAddressOptions& options) {
  if (!options.node_host.empty()) return NamedAddress(options);
  if (!options.interface.empty()) return AddressOfInterface(options.interface);
  return AddressOnRoute(options);
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
