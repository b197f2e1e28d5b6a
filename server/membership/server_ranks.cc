#include "server/membership/server_ranks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace byteps {

void RankServers(const std::vector<std::string>& ordered_hosts, std::vector<JobMember*>* servers) {
  std::vector<bool> taken(servers->size(), false);
  for (const JobMember* server : *servers) {
    if (server->rank >= 0) taken[static_cast<size_t>(server->rank)] = true;
  }
  for (JobMember* server : *servers) {
    const int32_t wanted = server->hello.preferred_rank();
    if (server->rank >= 0 || wanted < 0 || taken[static_cast<size_t>(wanted)]) continue;
    server->rank = wanted;
    taken[static_cast<size_t>(wanted)] = true;
  }
  const auto place = [&](const JobMember* server) {
    const control::Host& host = server->hello.host();
    return std::find_if(ordered_hosts.begin(), ordered_hosts.end(),
                        [&](const std::string& one) { return one == host.name() || one == host.address(); });
  };
  std::stable_sort(servers->begin(), servers->end(),
                   [&](const JobMember* one, const JobMember* other) { return place(one) < place(other); });
  for (JobMember* server : *servers) {
    if (server->rank >= 0) continue;
    const auto free = std::find(taken.begin(), taken.end(), false);
    server->rank = static_cast<int32_t>(free - taken.begin());
    *free = true;
  }
  std::sort(servers->begin(), servers->end(),
            [](const JobMember* one, const JobMember* other) { return one->rank < other->rank; });
}

}  // namespace byteps
