// links_report.h - the network interfaces and RDMA devices of this host, and what governs TCP on them.
//
//     std::cout << LinksReport("", InterfaceAddresses());
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_INFO_LINKS_REPORT_H_
#define BYTEPS_TOOLS_INFO_LINKS_REPORT_H_

#include <map>
#include <string>
#include <vector>

namespace byteps {

// Numeric addresses by the name of their interface; those of one link alone (fe80::) are left out.
using AddressesByInterface = std::map<std::string, std::vector<std::string>>;

// Of this process's network namespace.
AddressesByInterface InterfaceAddresses();

// Lines for people: a device each, and TCP's congestion control. `root`: where /sys and /proc are, "" for those of
// the host.
std::string LinksReport(const std::string& root, const AddressesByInterface& addresses);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_LINKS_REPORT_H_
