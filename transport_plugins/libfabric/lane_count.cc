#include "transport_plugins/libfabric/lane_count.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <rdma/fi_domain.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

namespace byteps::fabric {
namespace {

// What one thread moves through TCP; and how many cores there must be for each of them, beside the trainer's.
constexpr uint64_t kMegabitsPerLane = 25'000;
constexpr size_t kCoresPerLane = 8;
constexpr size_t kMost = 4;
constexpr size_t kDefaultLeast = 65536;

bool SameAddress(const sockaddr* one, const void* other) {
  if (one->sa_family != static_cast<const sockaddr*>(other)->sa_family) return false;
  if (one->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(one)->sin_addr.s_addr ==
           static_cast<const sockaddr_in*>(other)->sin_addr.s_addr;
  }
  return one->sa_family == AF_INET6 && std::memcmp(&reinterpret_cast<const sockaddr_in6*>(one)->sin6_addr,
                                                   &static_cast<const sockaddr_in6*>(other)->sin6_addr, 16) == 0;
}

// Of the interface with this address, as its driver says; 0 if it does not.
uint64_t LinkMegabits(const void* address) {
  ifaddrs* raw = nullptr;
  if (address == nullptr || getifaddrs(&raw) != 0) return 0;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, freeifaddrs);
  for (const ifaddrs* at = raw; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || !SameAddress(at->ifa_addr, address)) continue;
    int64_t speed = 0;
    std::ifstream("/sys/class/net/" + std::string(at->ifa_name) + "/speed") >> speed;
    return speed > 0 ? static_cast<uint64_t>(speed) : 0;
  }
  return 0;
}

size_t UsableCores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<size_t>(CPU_COUNT(&set)) : 1;
}

}  // namespace

size_t LanesFor(size_t cores, uint64_t megabits) {
  const size_t by_link =
      megabits == 0 ? kMost : static_cast<size_t>((megabits + kMegabitsPerLane - 1) / kMegabitsPerLane);
  return std::clamp<size_t>(std::min(cores / kCoresPerLane, by_link), 1, kMost);
}

size_t LaneCount(const transports::Host& host, const fi_info& info) {
  if ((info.domain_attr->mr_mode & FI_MR_PROV_KEY) != 0) return 1;
  const std::string asked = host.Config("BYTEPS_TCP_LANES");
  // The configuration has checked that it is a number.
  if (!asked.empty()) return std::max(1, std::atoi(asked.c_str()));
  // The threads of a session run on the cores that were set apart for them: each core may carry a lane.
  const size_t cores = UsableCores() * (host.Config("BYTEPS_IO_CPU_CORES").empty() ? 1 : kCoresPerLane);
  return LanesFor(cores, LinkMegabits(info.src_addr));
}

size_t LeastForLanes(const transports::Host& host) {
  const std::string asked = host.Config("BYTEPS_TCP_LANE_BYTES");
  return asked.empty() ? kDefaultLeast : std::strtoull(asked.c_str(), nullptr, 10);
}

}  // namespace byteps::fabric
