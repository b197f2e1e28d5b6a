// links_report.h - the network interfaces and RDMA devices of this host, and what governs TCP on them.
//
//     std::cout << LinksReport("", Interfaces());
//
// Which interfaces there are, the kernel is asked about this process's network namespace. /sys is that of the namespace
// in which it was mounted, which may be another one (`unshare -n`, `ip netns` without its own mount): then what only
// /sys knows is left out, and said to be.
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_INFO_LINKS_REPORT_H_
#define BYTEPS_TOOLS_INFO_LINKS_REPORT_H_

#include <map>
#include <string>
#include <vector>

namespace byteps {

struct InterfaceFacts {
  int index = 0;
  bool up = false;
  bool linked = false;  // an interface can be up without a cable
  int mtu = 0;          // 0: not known
  // Numeric; those of one link alone (fe80::) are left out.
  std::vector<std::string> addresses;
};

// By name.
using InterfaceMap = std::map<std::string, InterfaceFacts>;

// Of this process's network namespace.
InterfaceMap Interfaces();

// Lines for people: a device each, and how TCP is set. `root`: where /sys and /proc are, "" for those of
// the host.
std::string LinksReport(const std::string& root, const InterfaceMap& interfaces);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_LINKS_REPORT_H_
