#include "server/membership/server_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <set>

#include "core/control/host_identity.h"

namespace byteps {

OptimalWeights OptimumOf(uint64_t n, uint64_t k) {
  // One worker host needs no network at all.
  if (n == 1) return {0, 1};
  return {2 * static_cast<double>(n - 1), static_cast<double>(n - std::min(n, k))};
}

std::string DescribeShares(const std::vector<double>& weights) {
  if (weights.empty()) return "all servers have the same share";
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::string text = "shares of the servers, per cent:";
  for (const double weight : weights) {
    char share[32];
    std::snprintf(share, sizeof share, " %.1f", 100 * weight / sum);
    text += share;
  }
  return text;
}

ServerShares SharesOf(const std::vector<const control::Host*>& workers,
                      const std::vector<const control::Host*>& servers) {
  std::set<std::string> worker_hosts, server_hosts;
  for (const control::Host* host : workers) worker_hosts.insert(LinkOf(*host));
  for (const control::Host* host : servers) server_hosts.insert(LinkOf(*host));
  ServerShares shares;
  if (worker_hosts.count("") != 0 || server_hosts.count("") != 0) {
    shares.obstacle = "of some members it is not known on which host they are: set BYTEPS_HOST_ID";
    return shares;
  }
  shares.at_home = worker_hosts.size() == 1 && worker_hosts == server_hosts;
  size_t colocated = 0;
  for (const std::string& host : worker_hosts) colocated += server_hosts.count(host);
  for (const control::Host* host : servers) shares.dedicated.push_back(worker_hosts.count(LinkOf(*host)) == 0);
  if (server_hosts.size() != servers.size()) {
    shares.obstacle = "some hosts have several servers (" + std::to_string(servers.size()) + " servers on " +
                      std::to_string(server_hosts.size()) + " hosts; BYTEPS_HOST_ID tells hosts apart)";
    return shares;
  }
  const size_t n = worker_hosts.size();
  const size_t k = servers.size() - colocated;
  if (colocated != n) {
    shares.obstacle = "only " + std::to_string(colocated) + " of " + std::to_string(n) + " worker hosts have a server";
    return shares;
  }
  if (k == 0) return shares;
  const OptimalWeights optimum = OptimumOf(n, k);
  for (const bool dedicated : shares.dedicated) {
    shares.weights.push_back(dedicated ? optimum.dedicated : optimum.colocated);
  }
  return shares;
}

}  // namespace byteps
