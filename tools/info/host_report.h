// host_report.h - what of this host decides how fast and whether BytePS runs on it.
//
//     std::cout << HostReport("", LockedMemoryLimit());
//
// Cores, NUMA nodes, memory, how much of it may be locked, huge pages, and whether processes may reach each other's
// memory, each with the consequence where there is one.
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_INFO_HOST_REPORT_H_
#define BYTEPS_TOOLS_INFO_HOST_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace byteps {

inline constexpr uint64_t kUnlimited = ~uint64_t{0};

// What this process may lock (RLIMIT_MEMLOCK) in bytes; kUnlimited also where CAP_IPC_LOCK makes the limit void.
uint64_t LockedMemoryLimit();

struct HostFact {
  std::string subject;  // "cores"
  std::string text;
};

// `root`: where /proc and /sys are, "" for those of the host.
std::vector<HostFact> HostFacts(const std::string& root, uint64_t locked_memory);

// The same as lines for people.
std::string HostReport(const std::string& root, uint64_t locked_memory);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_HOST_REPORT_H_
