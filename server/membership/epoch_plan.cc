#include "server/membership/epoch_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

namespace byteps {
namespace {

void Fill(const JobMember& member, int32_t rank, control::Member* out) {
  const control::Hello& hello = member.hello;
  out->set_member(member.id);
  out->set_role(hello.role());
  out->set_rank(rank);
  out->set_host_index(hello.host_index());
  out->set_local_rank(hello.local_rank());
  out->set_local_size(hello.local_size());
  *out->mutable_host() = hello.host();
  out->set_pid(hello.pid());
  *out->mutable_lanes() = hello.lanes();
  if (hello.has_local()) *out->mutable_local() = hello.local();
}

std::vector<const control::Hello*> HellosOf(const std::vector<JobMember*>& members) {
  std::vector<const control::Hello*> hellos;
  for (const JobMember* member : members) hellos.push_back(&member->hello);
  return hellos;
}

std::vector<const control::Host*> HostsOf(const std::vector<JobMember*>& members) {
  std::vector<const control::Host*> hosts;
  for (const JobMember* member : members) hosts.push_back(&member->hello.host());
  return hosts;
}

// The least of what the workers allow.
void AddWorkers(EpochPlan* plan) {
  plan->epoch.set_inline_bytes(UINT64_MAX);
  for (size_t rank = 0; rank < plan->workers.size(); ++rank) {
    const JobMember& worker = *plan->workers[rank];
    Fill(worker, static_cast<int32_t>(rank), plan->epoch.add_workers());
    if (worker.hello.has_local()) {
      plan->epoch.set_inline_bytes(std::min(plan->epoch.inline_bytes(), worker.hello.inline_bytes()));
    }
    const uint64_t bound = worker.hello.partition_bytes();
    uint64_t& least = plan->placement.partition_bytes;
    if (bound != 0 && (least == 0 || bound < least)) least = bound;
  }
}

// Workers agree on the variable; one of them that forces servers speaks for all.
std::string CollectivePathOf(const std::vector<const control::Hello*>& workers) {
  const std::string& named = workers.front()->collective_path();
  if (!named.empty() && named != "auto") return named;
  const bool forced =
      std::any_of(workers.begin(), workers.end(), [](const control::Hello* worker) { return worker->force_servers(); });
  return forced ? "servers" : "auto";
}

// The least of what the servers have.
void AddServers(const std::vector<JobMember*>& servers, EpochPlan* plan) {
  plan->placement.slot_bytes = UINT64_MAX;
  for (const JobMember* server : servers) {
    Fill(*server, server->rank, plan->epoch.add_servers());
    plan->placement.slot_bytes = std::min(plan->placement.slot_bytes, server->hello.slot_bytes());
    plan->placement.lanes.push_back(static_cast<uint32_t>(server->hello.lanes_size()));
  }
  plan->epoch.set_slot_bytes(plan->placement.slot_bytes);
}

}  // namespace

absl::StatusOr<EpochPlan> PlanEpoch(const std::vector<JobMember*>& workers, const std::vector<JobMember*>& servers,
                                    const EpochOptions& options) {
  const absl::StatusOr<std::vector<size_t>> order = RankOrder(HellosOf(workers));
  if (!order.ok()) return order.status();
  EpochPlan plan;
  for (const size_t index : *order) plan.workers.push_back(workers[index]);
  const std::vector<const control::Hello*> hellos = HellosOf(plan.workers);
  const absl::StatusOr<std::vector<uint32_t>> groups = GroupSizes(hellos);
  if (!groups.ok()) return groups.status();
  plan.local = FindLocalSets(hellos, *groups);
  if (servers.empty() && plan.served()) {
    return absl::FailedPreconditionError(
        "this job has no servers (DMLC_NUM_SERVER=0), so its workers must reduce among themselves, but they cannot: " +
        plan.local.refusal + ": start a server (bpslaunch --servers 1), or remove the cause");
  }
  for (const uint32_t size : *groups) plan.epoch.add_group_sizes(size);
  for (const uint32_t size : plan.local.sizes) plan.epoch.add_local_sizes(size);
  AddWorkers(&plan);
  AddServers(servers, &plan);
  plan.epoch.set_asynchronous(hellos.front()->asynchronous());
  plan.epoch.set_staleness(hellos.front()->staleness());

  const ServerShares shares = SharesOf(HostsOf(plan.workers), HostsOf(servers));
  if (options.mixed_mode != MixedMode::kOff) plan.placement.weights = shares.weights;
  for (const double weight : plan.placement.weights) plan.epoch.add_server_shares(weight);
  plan.epoch.set_collective_path(CollectivePathOf(hellos));
  if (!shares.obstacle.empty()) {
    const auto dedicated = std::count(shares.dedicated.begin(), shares.dedicated.end(), true);
    const bool both = dedicated > 0 && dedicated < std::ssize(shares.dedicated);
    if (options.mixed_mode == MixedMode::kOn) {
      plan.obstacle = "BYTEPS_ENABLE_MIXED_MODE=on, but " + shares.obstacle;
    } else if (options.mixed_mode == MixedMode::kAuto && both) {
      plan.obstacle = "some servers are on worker hosts and some are dedicated, but " + shares.obstacle;
    }
  }
  if (plan.local.sizes.size() > 1) {
    plan.placement.owners = *std::max_element(plan.local.sizes.begin(), plan.local.sizes.end());
  }
  plan.placement.at_home = shares.at_home;
  plan.placement.hash = options.hash;
  // The formula of the mixed hash is that of the optimum; where this says nothing, a key goes anywhere.
  if (shares.obstacle.empty()) plan.placement.hash.dedicated = shares.dedicated;
  return plan;
}

}  // namespace byteps
