// epoch_plan.h - what a session starts with: ranks, groups, who reduces among themselves, and how tensors are placed.
//
//     absl::StatusOr<EpochPlan> plan = PlanEpoch(session.workers, servers, {mixed_mode, hash});
//     plan->epoch.set_session_id(...); ...                                // then it is sent to every member
//     session.Activate(plan->workers, plan->placement, plan->served());
//
// A function of what the members said in their Hellos, so that every member can be told the same.
//
// Threads: a free function without state.
#ifndef BYTEPS_SERVER_MEMBERSHIP_EPOCH_PLAN_H_
#define BYTEPS_SERVER_MEMBERSHIP_EPOCH_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/control/control.pb.h"
#include "server/membership/job_member.h"
#include "server/membership/key_hash.h"
#include "server/membership/membership.h"
#include "server/membership/placement.h"
#include "server/membership/server_weights.h"

namespace byteps {

struct EpochPlan {
  std::vector<JobMember*> workers;  // by rank
  control::Epoch epoch;             // but for its session, generation and nonce
  LocalSets local;
  PlacementOptions placement;
  // Why there is no mixed mode where one was asked for, by a variable or by where the servers are; else empty.
  std::string obstacle;

  // Do servers take part?
  bool served() const { return local.sizes.size() != 1; }
};

struct EpochOptions {
  MixedMode mixed_mode = MixedMode::kAuto;
  KeyHash hash;
};

// `workers`: all of a session, in any order; `servers`: all of the job, with their ranks. FAILED_PRECONDITION: their
// ranks, groups or hosts do not fit together.
absl::StatusOr<EpochPlan> PlanEpoch(const std::vector<JobMember*>& workers, const std::vector<JobMember*>& servers,
                                    const EpochOptions& options);

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_EPOCH_PLAN_H_
