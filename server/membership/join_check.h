// join_check.h - may this newcomer be together with the members that are there?
//
//     const JoinCheck check(&admission, &servers, &sessions, "the coordinator (...)");
//     JoinVerdict verdict = check.OfServer(hello);
//     verdict = check.OfWorker(hello, gathering_session);       // behind check.BesideRunning(hello)
//
// What concerns every member that waits fails all gathering sessions, so that no member waits in vain (kDisagrees). A
// newcomer that wants what another member has is refused alone (kPlaceTaken, kAlone), and a session that runs is not
// disturbed.
//
// Threads:   none.
// Ownership: what it is made of must outlive it; it changes nothing.
#ifndef BYTEPS_SERVER_MEMBERSHIP_JOIN_CHECK_H_
#define BYTEPS_SERVER_MEMBERSHIP_JOIN_CHECK_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/control/control.pb.h"
#include "server/membership/admission.h"
#include "server/membership/job_member.h"
#include "server/membership/job_session.h"

namespace byteps {

struct JoinVerdict {
  enum class Kind : uint8_t {
    kFits,
    kPlaceTaken,  // another member has its place
    kAlone,       // it is refused, the others wait on
    kDisagrees,   // with members that wait, or with the coordinator: the start fails for all of them
  };
  Kind kind = Kind::kFits;
  absl::Status why;
};

class JoinCheck {
 public:
  // `self`: where the coordinator is, for errors.
  JoinCheck(const Admission* admission, const std::vector<JobMember*>* servers, const JobSessions* sessions,
            std::string self)
      : admission_(admission), servers_(servers), sessions_(sessions), self_(std::move(self)) {}

  JoinVerdict OfServer(const control::Hello& hello) const;
  // `session`: the one that it would join; nullptr: it is the first of its session.
  JoinVerdict OfWorker(const control::Hello& hello, const JobSession* session) const;
  // A worker whose session runs already: its own error, and no other's. OK also where a session has begun to end, whose
  // next generation the worker may open.
  absl::Status BesideRunning(const control::Hello& hello) const;

 private:
  std::string OtherJob() const;

  const Admission* const admission_;
  const std::vector<JobMember*>* const servers_;
  const JobSessions* const sessions_;
  const std::string self_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_JOIN_CHECK_H_
