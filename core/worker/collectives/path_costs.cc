#include "core/worker/collectives/path_costs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/control/host_identity.h"
#include "core/worker/collectives/peer_records.h"

namespace byteps {
namespace {

size_t Links(const JobLinks& links) {
  size_t count = 0;
  for (const size_t link : links.workers) count = std::max(count, link + 1);
  for (const size_t link : links.servers) count = std::max(count, link + 1);
  return count;
}

double Largest(const std::vector<double>& out, const std::vector<double>& in) {
  double largest = 0;
  for (const double each : out) largest = std::max(largest, each);
  for (const double each : in) largest = std::max(largest, each);
  return largest;
}

// Bytes on links, in both directions.
struct Traffic {
  explicit Traffic(size_t links) : out(links), in(links) {}
  void Add(size_t from, size_t to, double bytes) {
    if (from == to) return;
    out[from] += bytes;
    in[to] += bytes;
  }
  std::vector<double> out, in;
};

PathRule RuleOf(const control::Epoch& epoch) {
  if (epoch.collective_path() == "peers") return PathRule::kPeers;
  return epoch.collective_path() == "servers" ? PathRule::kServers : PathRule::kAuto;
}

bool HasTwoWays(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast;
}

}  // namespace

const char* PathName(CollectivePath path) {
  switch (path) {
    case CollectivePath::kAlone:
      return "alone";
    case CollectivePath::kShared:
      return "shared";
    case CollectivePath::kServers:
      return "servers";
    case CollectivePath::kPeers:
      return "peers";
  }
  return "unknown";
}

JobLinks JobLinks::Of(const control::Epoch& epoch) {
  JobLinks links;
  std::map<std::string, size_t> numbers;
  const auto number = [&](const control::Member& member) {
    std::string link = LinkOf(member.host());
    // Of a member whose host is not known: a link of its own.
    if (link.empty()) link = "member " + std::to_string(member.member());
    return numbers.emplace(std::move(link), numbers.size()).first->second;
  };
  for (const control::Member& worker : epoch.workers()) links.workers.push_back(number(worker));
  for (const control::Member& server : epoch.servers()) links.servers.push_back(number(server));
  links.shares.assign(epoch.server_shares().begin(), epoch.server_shares().end());
  if (links.shares.size() != links.servers.size()) links.shares.assign(links.servers.size(), 1);
  const double sum = std::accumulate(links.shares.begin(), links.shares.end(), 0.0);
  for (double& share : links.shares) share /= sum;
  links.local_sizes.assign(epoch.local_sizes().begin(), epoch.local_sizes().end());
  links.rule = RuleOf(epoch);
  return links;
}

JobLinks JobLinks::Uniform(uint32_t hosts, uint32_t local, uint32_t servers, uint32_t colocated) {
  JobLinks links;
  for (uint32_t host = 0; host < hosts; ++host) links.workers.insert(links.workers.end(), local, host);
  for (uint32_t server = 0; server < servers; ++server) {
    links.servers.push_back(server < colocated ? server % hosts : hosts + server - colocated);
  }
  links.shares.assign(servers, 1.0 / std::max(1u, servers));
  if (hosts == 1 || local > 1) links.local_sizes.assign(hosts, local);
  return links;
}

double PathCost::Seconds(double bytes_per_second) const {
  return steps * PathCosts::kStep + local_steps * PathCosts::kLocalStep + messages * PathCosts::kMessage +
         busiest / bytes_per_second;
}

PathCosts::PathCosts(JobLinks links) : links_(std::move(links)), on_link_(Links(links_)) {
  for (const size_t link : links_.workers) on_link_[link] += 1;
  servers_ = ServerLoads();
}

// Of each part one worker of each set sends and receives; which one does not matter, since a set has one link.
PathCosts::Loads PathCosts::ServerLoads() const {
  std::vector<size_t> senders;
  if (links_.local_sizes.size() > 1) {
    size_t first = 0;
    for (const uint32_t size : links_.local_sizes) {
      if (first < links_.workers.size()) senders.push_back(links_.workers[first]);
      first += size;
    }
  } else {
    senders = links_.workers;
  }
  Traffic all(on_link_.size());
  for (size_t server = 0; server < links_.servers.size(); ++server) {
    for (const size_t sender : senders) {
      all.Add(sender, links_.servers[server], links_.shares[server]);
      all.Add(links_.servers[server], sender, links_.shares[server]);
    }
  }
  Loads loads;
  loads.all_reduce = Largest(all.out, all.in);
  // The worst of all roots, since ranks that disagree on the root shall meet.
  std::vector<size_t> roots = senders;
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  for (const size_t root : roots) {
    Traffic traffic(on_link_.size());
    for (size_t server = 0; server < links_.servers.size(); ++server) {
      traffic.Add(root, links_.servers[server], links_.shares[server]);
      bool is_root = false;  // one sender of the root's link is the root
      for (const size_t sender : senders) {
        if (sender == root && !std::exchange(is_root, true)) continue;
        traffic.Add(links_.servers[server], sender, links_.shares[server]);
      }
    }
    loads.broadcast = std::max(loads.broadcast, Largest(traffic.out, traffic.in));
  }
  return loads;
}

// Bytes on the busiest link per byte of a slice that the root gives and its receiver passes on to all others.
double PathCosts::BroadcastBySlices() const {
  const auto n = static_cast<double>(size());
  double largest = 0;
  for (size_t root = 0; root < on_link_.size(); ++root) {
    if (on_link_[root] == 0) continue;
    for (size_t link = 0; link < on_link_.size(); ++link) {
      const double on = on_link_[link], others = on - (link == root ? 1 : 0);
      const double beyond = n - 1 - others;  // ranks but for the root, of other links
      const double out = (link == root ? beyond : 0) + others * beyond;
      const double in = (link == root ? 0 : others) + beyond * others;
      largest = std::max({largest, out, in});
    }
  }
  return largest / std::max(1.0, n - 1);
}

// Bytes on the busiest link per byte of one rank's input.
double PathCosts::PeerLoad(CollectiveKind kind, bool small) const {
  const auto n = static_cast<double>(size());
  double crossing = 0, gathered = 0;  // pairs of ranks whose bytes leave a link; ranks beyond it
  for (const double on : on_link_) {
    if (on == 0) continue;
    crossing = std::max(crossing, on * (n - on));
    gathered = std::max(gathered, n - on);
  }
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return small ? crossing : 2 * crossing / n;
    case CollectiveKind::kBroadcast:
      return small ? gathered : BroadcastBySlices();
    case CollectiveKind::kAllGather:
      return crossing;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return crossing / n;
    case CollectiveKind::kReduce:
      return small ? gathered : crossing / std::max(1.0, n - 1);
    case CollectiveKind::kGather:
      return gathered;
    case CollectiveKind::kScatter:
      return gathered / n;
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      return gathered == 0 ? 0 : 1;
    default:
      return 0;
  }
}

std::vector<CollectivePath> PathCosts::Ways(CollectiveKind kind) const {
  if (size() <= 1) return {CollectivePath::kAlone};
  if (!HasTwoWays(kind)) return {CollectivePath::kPeers};
  if (links_.local_sizes.size() == 1) return {CollectivePath::kShared, CollectivePath::kPeers};
  if (links_.servers.empty()) return {CollectivePath::kPeers};
  return {CollectivePath::kServers, CollectivePath::kPeers};
}

PathCost PathCosts::Cost(CollectivePath path, CollectiveKind kind, uint64_t bytes) const {
  PathCost cost;
  const auto whole = static_cast<double>(bytes);
  const auto others = static_cast<uint32_t>(size() - 1);
  if (path == CollectivePath::kAlone) return cost;
  if (path == CollectivePath::kShared) {
    cost.local_steps = bytes <= wire::kPeerInline ? 1 : 2;
    cost.messages = cost.local_steps * 2 * others;
    return cost;
  }
  if (path == CollectivePath::kServers) {
    (on_link_.size() > 1 ? cost.steps : cost.local_steps) = 2;
    if (links_.local_sizes.size() > 1) cost.local_steps += 2;
    cost.messages = 2;
    cost.busiest = whole * (kind == CollectiveKind::kBroadcast ? servers_.broadcast : servers_.all_reduce);
    return cost;
  }
  // ANNOUNCE; of what is large also READY, the bytes, and what passes them on.
  const bool pairwise = kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
  const bool split =
      kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kScatter;
  const bool small = bytes / (split ? std::max<size_t>(1, size()) : 1) <= wire::kPeerInline;
  const bool passes = HasTwoWays(kind) || kind == CollectiveKind::kReduce || kind == CollectiveKind::kSparseAllReduce;
  const uint32_t steps = small ? 1 : passes ? 4 : 3;
  (on_link_.size() > 1 ? cost.steps : cost.local_steps) = steps;
  cost.messages = 2 * steps * (pairwise ? 1 : others);
  cost.busiest = whole * PeerLoad(kind, small);
  return cost;
}

CollectivePath PathCosts::Choose(CollectiveKind kind, uint64_t bytes) const {
  const std::vector<CollectivePath> ways = Ways(kind);
  if (ways.size() == 1) return ways[0];
  if (links_.rule != PathRule::kAuto) return links_.rule == PathRule::kPeers ? ways[1] : ways[0];
  // Without a network there is nothing to save.
  if (ways[0] == CollectivePath::kShared || on_link_.size() == 1) return ways[0];
  const double servers = Cost(ways[0], kind, bytes).Seconds(kNominalRate);
  return Cost(ways[1], kind, bytes).Seconds(kNominalRate) < kGain * servers ? ways[1] : ways[0];
}

}  // namespace byteps
