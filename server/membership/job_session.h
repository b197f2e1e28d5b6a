// job_session.h - a session as the coordinator sees it: who is in it, and what they have agreed about.
//
//     gathering --Activate: every member is there--> active
//
// The coordinator (server/membership/coordinator.h) makes a session when its first worker comes, and forgets it at the
// moment it ends or fails: there is no state after active. Here is what one session knows; who is told what is said
// there.
//
// Threads:   none.
// Ownership: by the coordinator; `workers` belong to their connections.
#ifndef BYTEPS_SERVER_MEMBERSHIP_JOB_SESSION_H_
#define BYTEPS_SERVER_MEMBERSHIP_JOB_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/control/control.pb.h"
#include "server/membership/barrier_book.h"
#include "server/membership/job_member.h"
#include "server/membership/membership.h"
#include "server/membership/placement.h"
#include "server/membership/tensor_directory.h"

namespace byteps {

enum class SessionState : uint8_t { kGathering, kActive };
const char* SessionStateName(SessionState state);

struct JobSession {
  uint64_t id = 0;
  std::string name;
  uint64_t generation = 0;
  SessionState state = SessionState::kGathering;
  std::vector<JobMember*> workers;  // gathering: by arrival; active: by rank, nullptr: has left

  // Gathering.
  std::map<HostPlace, std::string> gone;  // who was here before, and why no more
  std::string refused;                    // the last one that wanted a place that is taken

  // Active.
  bool served = true;                         // servers take part
  std::map<uint32_t, std::string> left;       // who has left before the others, by member id
  uint32_t missed = 0;                        // one of these, whom a server or a worker misses
  bool stuck = false;                         // a worker cannot go on
  absl::Status broken;                        // a server cannot go on: the session fails once what has come is read
  uint32_t broken_by = 0;                     // of this member
  std::map<uint32_t, absl::Status> troubles;  // why workers cannot go on, by member id
  std::vector<std::string> names;             // of each rank, for errors
  std::unique_ptr<TensorDirectory> tensors;
  std::unique_ptr<BarrierBook> barriers;

  bool gathering() const { return state == SessionState::kGathering; }
  bool active() const { return state == SessionState::kActive; }
  // `session "name" generation 2`
  std::string Title() const;

  // What they said of themselves. Gathering only: no member has left.
  std::vector<const control::Hello*> Hellos() const;
  // While it gathers: who is not there, for people.
  std::vector<std::string> Missing() const;

  // Every member is there: `by_rank`. Its members get their ranks.
  void Activate(std::vector<JobMember*> by_rank, PlacementOptions placement, bool served);

  // Those whose connections are open.
  std::vector<JobMember*> Present() const;
  // nullptr: not there, or has left.
  JobMember* Find(uint32_t member) const;
  // Has this member said goodbye, or gone after that?
  bool HasLeft(uint32_t member) const;
  // For errors; "" if it was never here.
  std::string NameOf(uint32_t member) const;
  // Has any member said goodbye?
  bool Ending() const;
  // Has every member said goodbye?
  bool EverybodyLeft() const;
  // The names of those that have not, with commas.
  std::string Staying() const;
};

// By id.
using JobSessions = std::map<uint64_t, std::unique_ptr<JobSession>>;

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_JOB_SESSION_H_
