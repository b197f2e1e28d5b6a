// path_costs.h - what an operation of all ranks costs on each way it could go, and which way is the cheapest.
//
//     PathCosts costs(JobLinks::Of(epoch));
//     if (costs.Choose(CollectiveKind::kAllReduce, bytes) == CollectivePath::kPeers) ...
//     PathCost cost = costs.Cost(CollectivePath::kServers, CollectiveKind::kAllReduce, bytes);     // bps_info --paths
//
// The ways of all_reduce and broadcast: `servers`, as push_pull goes (workers of one host reduce first among
// themselves), `shared`, the same where all workers are of one host, and `peers` (exchange_plan.h). Everything else has
// one way, `peers`: a server saves bytes only where several senders or receivers share what it holds.
//
//     seconds = steps x kStep + local_steps x kLocalStep + messages x kMessage + busiest bytes / rate
//
//   steps        messages one after another, from the first byte to the last
//   local_steps  the same within a host
//   messages     that one worker sends and receives
//   busiest      the most bytes that one host's link carries in one direction, as the ways cut and send tensors
//
// A decision is a function of what all ranks know alike: the membership, the kind and the bytes. Rates of links are
// none of that, so decisions are made for kNominalRate. Where servers and peers cost about the same, servers are taken:
// they spare the processors of workers.
//
// Threads: immutable.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_PATH_COSTS_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_PATH_COSTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/control/control.pb.h"
#include "core/worker/collectives/collective.h"

namespace byteps {

enum class CollectivePath : uint8_t { kAlone, kShared, kServers, kPeers };

// "peers"
const char* PathName(CollectivePath path);

// BYTEPS_COLLECTIVE_PATH.
enum class PathRule : uint8_t { kAuto, kServers, kPeers };

// Who shares whose link.
struct JobLinks {
  std::vector<size_t> workers;        // the link of each worker, by rank: numbers from 0
  std::vector<size_t> servers;        // of each server
  std::vector<double> shares;         // of what servers sum, by server; they add up to 1
  std::vector<uint32_t> local_sizes;  // as of control::Epoch
  PathRule rule = PathRule::kAuto;

  static JobLinks Of(const control::Epoch& epoch);
  // Hosts of `local` workers each that reduce among themselves, with a link each; `colocated` of the servers are on
  // worker hosts, the others have links of their own.
  static JobLinks Uniform(uint32_t hosts, uint32_t local, uint32_t servers, uint32_t colocated);
};

struct PathCost {
  uint32_t steps = 0;
  uint32_t local_steps = 0;
  uint32_t messages = 0;
  double busiest = 0;  // bytes
  double Seconds(double bytes_per_second) const;
};

class PathCosts {
 public:
  static constexpr double kStep = 25e-6;         // seconds: a small message from one host to another
  static constexpr double kLocalStep = 5e-6;     // within a host
  static constexpr double kMessage = 1.5e-6;     // a processor's work for one message
  static constexpr double kNominalRate = 1.2e9;  // bytes per second: what 10 Gbit/s carry as payload
  static constexpr double kGain = 0.95;          // peers are taken for no less than this

  PathCosts() = default;
  explicit PathCosts(JobLinks links);

  // The ways that an operation of all ranks has in this job.
  std::vector<CollectivePath> Ways(CollectiveKind kind) const;
  // `bytes`: of one rank's input (all_gather, gather: the largest).
  PathCost Cost(CollectivePath path, CollectiveKind kind, uint64_t bytes) const;
  CollectivePath Choose(CollectiveKind kind, uint64_t bytes) const;

  size_t size() const { return links_.workers.size(); }

 private:
  // Bytes that cross links per byte of a tensor: the largest of any link and direction.
  struct Loads {
    double all_reduce = 0;
    double broadcast = 0;
  };
  Loads ServerLoads() const;
  double PeerLoad(CollectiveKind kind, bool small) const;
  double BroadcastBySlices() const;

  JobLinks links_;
  std::vector<double> on_link_;  // workers of each link
  Loads servers_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_PATH_COSTS_H_
