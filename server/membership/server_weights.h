// server_weights.h - how much each server should hold, when some share their host with workers and some do not.
//
//     const ServerShares shares = SharesOf(worker_hosts, server_hosts);
//     options.weights = shares.weights;                 // for Placement; empty: all alike
//     if (!shares.obstacle.empty()) ...                 // why there is no optimum to follow, for people
//
// With n worker hosts that each run one server, and k more hosts with one server each, all of one bandwidth, the time
// of a round is least when an extra server gets 2(n-1) parts for n-k of a colocated one: the link of a worker host
// carries the pushes and results of its own workers besides those of its server. The sum of all parts is
// n²+kn-2k. With as many extra hosts as worker hosts, or more, the colocated servers get nothing. Of other
// arrangements nothing is claimed: all alike.
//
// Hosts are told apart by their network link: BYTEPS_HOST_ID where it was given, else the boot id (containers of one
// machine share its link).
#ifndef BYTEPS_SERVER_MEMBERSHIP_SERVER_WEIGHTS_H_
#define BYTEPS_SERVER_MEMBERSHIP_SERVER_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/control/control.pb.h"

namespace byteps {

// BYTEPS_ENABLE_MIXED_MODE.
enum class MixedMode : uint8_t { kAuto, kOn, kOff };

struct ServerShares {
  std::vector<double> weights;  // of each server; empty: all alike
  std::vector<bool> dedicated;  // of each server: no worker shares its host
  bool at_home = false;         // workers and servers are all on one host
  std::string obstacle;         // why the optimum says nothing here; empty: it does, or all are alike by it
};

// The hosts of the workers and of the servers, by rank.
ServerShares SharesOf(const std::vector<const control::Host*>& workers,
                      const std::vector<const control::Host*>& servers);

// `shares of the servers, per cent: 12.5 12.5 75.0`, for people.
std::string DescribeShares(const std::vector<double>& weights);

// The weights of the optimum with `n` worker hosts: of a dedicated server, and of a colocated one, beside `k`
// dedicated.
struct OptimalWeights {
  double dedicated = 0;
  double colocated = 0;
};
OptimalWeights OptimumOf(uint64_t n, uint64_t k);

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_SERVER_WEIGHTS_H_
