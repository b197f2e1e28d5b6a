// server_weights.h - how much each server should hold, when some share their host with workers and some do not.
//
//     options.weights = ServerWeights(worker_hosts, server_hosts);      // for Placement; empty: all alike
//
// With n worker hosts that each run one server, and k more hosts with one server each, all of one bandwidth, the time
// of a round is least when an extra server gets 2(n-1) parts for n-k of a colocated one: the link of a worker host
// carries the pushes and results of its own workers besides those of its server. With as many extra hosts as worker
// hosts, or more, the colocated servers get nothing. Of other arrangements nothing is claimed: all alike.
//
// Hosts are told apart by their boot id: containers of one machine share its link.
#ifndef BYTEPS_SERVER_SERVER_WEIGHTS_H_
#define BYTEPS_SERVER_SERVER_WEIGHTS_H_

#include <vector>

#include "core/control.pb.h"

namespace byteps {

std::vector<double> ServerWeights(const std::vector<const control::Host*>& workers,
                                  const std::vector<const control::Host*>& servers);

}  // namespace byteps

#endif  // BYTEPS_SERVER_SERVER_WEIGHTS_H_
