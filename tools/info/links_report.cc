#include "tools/info/links_report.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
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

// What only /sys knows of an interface.
std::string OfSysfs(const std::string& at) {
  std::string text;
  const int64_t megabits = ReadNumber(at + "/speed", -1);
  if (megabits > 0) absl::StrAppend(&text, ", ", static_cast<double>(megabits) / 1000, " Gbit/s");
  const std::string driver = LinkName(at + "/device/driver");
  if (!driver.empty()) absl::StrAppend(&text, ", driver ", driver);
  return absl::StrCat(text, Node(at + "/device"));
}

std::string Describe(const std::string& name, const InterfaceFacts& facts) {
  std::string text = absl::StrCat("  ", name, facts.up ? ": up" : ": down");
  if (facts.up && !facts.linked) text += ", but without a link";
  if (!facts.addresses.empty()) absl::StrAppend(&text, ", ", absl::StrJoin(facts.addresses, " "));
  if (facts.mtu > 0) absl::StrAppend(&text, ", MTU ", facts.mtu);
  return text;
}

// Those that `folder` shows and that are not ours: of the namespace in which it was mounted. An interface that has come
// or gone since `interfaces` were read counts, too.
std::vector<std::string> Strangers(const std::string& folder, const InterfaceMap& interfaces) {
  std::vector<std::string> strangers;
  for (const std::string& name : Entries(folder)) {
    const int64_t index = ReadNumber(folder + "/" + name + "/ifindex", -1);
    if (index < 0) continue;  // other files lie there, too (bonding_masters)
    const auto own = interfaces.find(name);
    if (own == interfaces.end() || own->second.index != index) strangers.push_back(name);
  }
  return strangers;
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

// Of new connections; another one than Linux's default changes what TCP takes of time and processors, and what happens
// after a pause counts in every step that computes for longer than it
// (docs/performance/notes/2026-11-24-after-a-pause.md).
std::string Tcp(const std::string& root) {
  const std::string folder = root + "/proc/sys/net/ipv4/";
  const std::string chosen = ReadLine(folder + "tcp_congestion_control");
  if (chosen.empty()) return "";
  const bool slow = ReadLine(folder + "tcp_slow_start_after_idle") == "1";
  return absl::StrCat("  TCP: congestion control ", chosen, " (net.ipv4.tcp_congestion_control; this kernel has ",
                      ReadLine(folder + "tcp_available_congestion_control"), ")\n",
                      slow ? "  TCP: connections begin slowly again behind a pause (net.ipv4.tcp_slow_start_after_idle "
                             "1): with 0 a step loses no time by that\n"
                           : "");
}

}  // namespace

InterfaceMap Interfaces() {
  InterfaceMap interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return interfaces;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  const int asks = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    InterfaceFacts& facts = interfaces[each->ifa_name];
    facts.index = static_cast<int>(if_nametoindex(each->ifa_name));
    facts.up = (each->ifa_flags & IFF_UP) != 0;
    facts.linked = (each->ifa_flags & IFF_RUNNING) != 0;
    ifreq request{};
    std::strncpy(request.ifr_name, each->ifa_name, IFNAMSIZ - 1);
    if (asks >= 0 && ::ioctl(asks, SIOCGIFMTU, &request) == 0) facts.mtu = request.ifr_mtu;
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
    facts.addresses.emplace_back(text);
  }
  if (asks >= 0) ::close(asks);
  return interfaces;
}

std::string LinksReport(const std::string& root, const InterfaceMap& interfaces) {
  std::string text;
  const std::string folder = root + "/sys/class/net";
  const std::vector<std::string> strangers = Strangers(folder, interfaces);
  for (const auto& [name, facts] : interfaces) {
    text += Describe(name, facts);
    if (strangers.empty()) text += OfSysfs(folder + "/" + name);
    text += "\n";
  }
  if (!strangers.empty()) {
    absl::StrAppend(&text, "  /sys is of another network namespace, whose ", absl::StrJoin(strangers, ", "),
                    strangers.size() == 1 ? " is" : " are",
                    " not reachable from here: rates and drivers are not known, nor whose the RDMA devices are\n");
  }
  text += Tcp(root);
  const std::string devices = root + "/sys/class/infiniband";
  const std::vector<std::string> names = Entries(devices);
  if (names.empty()) text += "  no RDMA device (/sys/class/infiniband)\n";
  for (const std::string& name : names) text += RdmaDevice(devices, name);
  return text;
}

}  // namespace byteps
