#include "tools/info/links_report.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/info/sysfs.h"

namespace byteps {
namespace {

// "", or the NUMA node that a device hangs on.
std::string Node(const std::string& device) {
  const int64_t node = ReadNumber(device + "/numa_node", -1);
  return node < 0 ? "" : absl::StrCat(", NUMA node ", node);
}

std::string Interface(const std::string& folder, const std::string& name, const AddressesByInterface& addresses) {
  const std::string at = folder + "/" + name;
  const bool up = (ReadNumber(at + "/flags", 0) & IFF_UP) != 0;
  std::string text = absl::StrCat("  ", name, up ? ": up" : ": down");
  // An interface can be up without a cable: the state says "down" then.
  if (up && ReadLine(at + "/operstate") == "down") text += ", but without a link";
  if (const auto found = addresses.find(name); found != addresses.end() && !found->second.empty()) {
    absl::StrAppend(&text, ", ", absl::StrJoin(found->second, " "));
  }
  const int64_t megabits = ReadNumber(at + "/speed", -1);
  if (megabits > 0) absl::StrAppend(&text, ", ", static_cast<double>(megabits) / 1000, " Gbit/s");
  absl::StrAppend(&text, ", MTU ", ReadNumber(at + "/mtu", 0));
  const std::string driver = LinkName(at + "/device/driver");
  if (!driver.empty()) absl::StrAppend(&text, ", driver ", driver);
  return absl::StrCat(text, Node(at + "/device"), "\n");
}

// "InfiniBand", "Ethernet (RoCE)", or what else the kernel says.
std::string LinkLayer(const std::string& port) {
  const std::string layer = ReadLine(port + "/link_layer");
  return layer == "Ethernet" ? "Ethernet (RoCE)" : layer;
}

std::string RdmaDevice(const std::string& folder, const std::string& name) {
  const std::string at = folder + "/" + name;
  const std::string driver = LinkName(at + "/device/driver");
  std::string text;
  for (const std::string& port : Entries(at + "/ports")) {
    const std::string of_port = at + "/ports/" + port;
    const std::string state = ReadLine(of_port + "/state");  // "4: ACTIVE"
    absl::StrAppend(&text, "  ", name, " port ", port, ": ", state.substr(state.rfind(' ') + 1), ", ",
                    LinkLayer(of_port), ", ", ReadLine(of_port + "/rate"));
    const std::string interface = ReadLine(of_port + "/gid_attrs/ndevs/0");
    if (!interface.empty()) absl::StrAppend(&text, ", of ", interface);
    if (!driver.empty()) absl::StrAppend(&text, ", driver ", driver);
    absl::StrAppend(&text, Node(at + "/device"), "\n");
  }
  return text.empty() ? absl::StrCat("  ", name, ": no port\n") : text;
}

// Of new connections; another one than Linux's default changes what TCP takes of time and processors (docs/experiments.md).
std::string CongestionControl(const std::string& root) {
  const std::string folder = root + "/proc/sys/net/ipv4/";
  const std::string chosen = ReadLine(folder + "tcp_congestion_control");
  if (chosen.empty()) return "";
  return absl::StrCat("  TCP: congestion control ", chosen, " (net.ipv4.tcp_congestion_control; this kernel has ",
                      ReadLine(folder + "tcp_available_congestion_control"), ")\n");
}

}  // namespace

AddressesByInterface InterfaceAddresses() {
  AddressesByInterface addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr)) {
      continue;
    }
    char text[NI_MAXHOST];
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(each->ifa_addr, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    addresses[each->ifa_name].push_back(text);
  }
  return addresses;
}

std::string LinksReport(const std::string& root, const AddressesByInterface& addresses) {
  std::string text;
  const std::string interfaces = root + "/sys/class/net";
  for (const std::string& name : Entries(interfaces)) {
    // Other files lie there, too (bonding_masters).
    if (!Entries(interfaces + "/" + name).empty()) text += Interface(interfaces, name, addresses);
  }
  text += CongestionControl(root);
  const std::string devices = root + "/sys/class/infiniband";
  const std::vector<std::string> names = Entries(devices);
  if (names.empty()) text += "  no RDMA device (/sys/class/infiniband)\n";
  for (const std::string& name : names) text += RdmaDevice(devices, name);
  return text;
}

}  // namespace byteps
