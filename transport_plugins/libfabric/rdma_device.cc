#include "transport_plugins/libfabric/rdma_device.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>

namespace byteps::fabric {
namespace {

std::vector<std::string> EntriesOf(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  std::vector<std::string> names;
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The first line; "" if the file cannot be read (an unused GID's attributes cannot).
std::string LineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool ParseNumber(std::string_view text, int* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= 0;
}

// The IP address that a RoCE GID is; "" for one that is none (unused, link-local).
std::string AddressOfGid(const std::string& gid) {
  in6_addr address{};
  if (inet_pton(AF_INET6, gid.c_str(), &address) != 1) return "";
  if (IN6_IS_ADDR_UNSPECIFIED(&address) || IN6_IS_ADDR_LINKLOCAL(&address)) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof text);
  } else {
    inet_ntop(AF_INET6, &address, text, sizeof text);
  }
  return text;
}

// The addresses of a network interface of this host that need no scope.
std::vector<std::string> AddressesOf(const std::string& interface) {
  std::vector<std::string> addresses;
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return addresses;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, freeifaddrs);
  for (const ifaddrs* at = raw; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || interface != at->ifa_name) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (at->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text, sizeof text);
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      inet_ntop(AF_INET6, &address, text, sizeof text);
    }
    if (text[0] != '\0') addresses.emplace_back(text);
  }
  return addresses;
}

bool IsIpv6(const RdmaAddress& address) { return address.address.find(':') != std::string::npos; }

}  // namespace

bool ParseRdmaDevice(std::string_view text, RdmaWish* wish) {
  const size_t colon = text.find(':');
  wish->device = std::string(text.substr(0, colon));
  wish->port = 0;
  if (wish->device.empty()) return false;
  return colon == std::string_view::npos || (ParseNumber(text.substr(colon + 1), &wish->port) && wish->port > 0);
}

std::vector<std::string> RdmaDevices(const std::string& root) { return EntriesOf(root + "/class/infiniband"); }

std::vector<RdmaAddress> RdmaAddresses(const std::string& root) {
  std::vector<RdmaAddress> addresses;
  for (const std::string& device : RdmaDevices(root)) {
    const std::string folder = root + "/class/infiniband/" + device;
    for (const std::string& port_name : EntriesOf(folder + "/ports")) {
      int port = 0;
      if (!ParseNumber(port_name, &port)) continue;
      const std::string ports = folder + "/ports/" + port_name;
      std::vector<int> gids;
      for (const std::string& name : EntriesOf(ports + "/gids")) {
        int gid = 0;
        if (ParseNumber(name, &gid)) gids.push_back(gid);
      }
      std::sort(gids.begin(), gids.end());
      for (const int gid : gids) {
        const std::string index = std::to_string(gid);
        const std::string interface = LineOf(ports + "/gid_attrs/ndevs/" + index);
        const std::string address = AddressOfGid(LineOf(ports + "/gids/" + index));
        if (!address.empty() && !interface.empty()) addresses.push_back({device, port, gid, interface, address});
      }
      if (LineOf(ports + "/link_layer") != "InfiniBand") continue;
      for (const std::string& interface : EntriesOf(folder + "/device/net")) {
        int dev_port = 0;
        if (ParseNumber(LineOf(folder + "/device/net/" + interface + "/dev_port"), &dev_port) && dev_port + 1 != port) {
          continue;
        }
        for (const std::string& address : AddressesOf(interface)) {
          addresses.push_back({device, port, -1, interface, address});
        }
      }
    }
  }
  std::stable_sort(addresses.begin(), addresses.end(),
                   [](const RdmaAddress& one, const RdmaAddress& other) { return IsIpv6(one) < IsIpv6(other); });
  return addresses;
}

std::string FindRdmaAddress(const std::vector<RdmaAddress>& addresses, const RdmaWish& wish, std::string* reason) {
  for (const RdmaAddress& at : addresses) {
    if (!wish.device.empty() && at.device != wish.device) continue;
    if (wish.port != 0 && at.port != wish.port) continue;
    if (wish.gid >= 0 && at.gid != wish.gid) continue;
    return at.address;
  }
  *reason = "no RDMA device fits BYTEPS_RDMA_DEVICE=" + wish.device +
            (wish.port == 0 ? "" : ":" + std::to_string(wish.port)) +
            (wish.gid < 0 ? "" : " with BYTEPS_RDMA_GID_INDEX=" + std::to_string(wish.gid)) +
            "; there are: " + PrintAll(addresses);
  return "";
}

std::string PrintAll(const std::vector<RdmaAddress>& addresses) {
  std::string text;
  for (const RdmaAddress& at : addresses) {
    text += (text.empty() ? "" : ", ") + at.device + " port " + std::to_string(at.port) +
            (at.gid < 0 ? "" : " GID " + std::to_string(at.gid)) + " (" + at.interface + ") " + at.address;
  }
  return text.empty() ? "none with an address" : text;
}

}  // namespace byteps::fabric
