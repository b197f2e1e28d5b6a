#include "server/server_weights.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

namespace byteps {

std::vector<double> ServerWeights(const std::vector<const control::Host*>& workers,
                                  const std::vector<const control::Host*>& servers) {
  std::set<std::string> worker_hosts, server_hosts;
  for (const control::Host* host : workers) worker_hosts.insert(host->boot_id());
  for (const control::Host* host : servers) server_hosts.insert(host->boot_id());
  const bool known = worker_hosts.count("") == 0 && server_hosts.count("") == 0;
  if (!known || server_hosts.size() != servers.size()) return {};
  const size_t n = worker_hosts.size();
  size_t colocated = 0;
  for (const std::string& host : worker_hosts) colocated += server_hosts.count(host);
  const size_t k = servers.size() - colocated;
  if (colocated != n || k == 0) return {};

  std::vector<double> weights;
  for (const control::Host* host : servers) {
    const bool shares = worker_hosts.count(host->boot_id()) != 0;
    // One worker host needs no network at all.
    if (n == 1) {
      weights.push_back(shares ? 1 : 0);
    } else {
      weights.push_back(shares ? static_cast<double>(n - std::min(n, k)) : 2 * static_cast<double>(n - 1));
    }
  }
  return weights;
}

}  // namespace byteps
