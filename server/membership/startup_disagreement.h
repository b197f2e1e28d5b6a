// startup_disagreement.h - a start that failed because a member does not agree with the others, remembered for those
// who come late.
//
//     disagreement.Remember(now, why, culprit_hello, sessions, servers);   // of one session, or, by a server, of all
//     absl::Status late = disagreement.Tell(now, worker_hello);            // why, if this worker belongs to that start
//     disagreement.SendServersHome();                                      // they were told, too; then
//     late = disagreement.TellServer(now);
//     if (disagreement.AllTold()) ...                                // no member will come any more
//     disagreement.OnServerAdded();
//
// They are told why at once, and do not wait for members that have gone. A member that comes a second time, or the
// server that was in the wrong and now is not, has been started anew: then the disagreement is over. Servers cannot be
// told from each other: if they were sent home, as many as the job has are of that start.
//
// Threads: none.
#ifndef BYTEPS_SERVER_MEMBERSHIP_STARTUP_DISAGREEMENT_H_
#define BYTEPS_SERVER_MEMBERSHIP_STARTUP_DISAGREEMENT_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "server/membership/job_session.h"
#include "server/membership/membership.h"

namespace byteps {

class StartupDisagreement {
 public:
  // How much later than the others of its start a member may come.
  static constexpr Time kLateness = 60 * kSecond;

  // Call before the sessions that gather fail of it; `servers` are there, without the culprit. Beside a session that
  // runs, `culprit` is a stranger and wrong, and no member comes late: then nothing is remembered.
  void Remember(Time now, const absl::Status& why, const control::Hello& culprit, const JobSessions& sessions,
                size_t servers = 0);

  // What a worker that comes late for such a start is told; OK: it has nothing to do with one.
  absl::Status Tell(Time now, const control::Hello& worker);

  // The servers that were there have been told, and those that come late are to be.
  void SendServersHome();
  // What a server that comes late for such a start is told; OK: servers were not sent home, or it was started anew.
  absl::Status TellServer(Time now);

  // Has every member of that start come? False also where they do not agree how many that are.
  bool AllTold() const;

  // A server has joined that agrees with every member.
  void OnServerAdded();

 private:
  struct Start {
    absl::Status why;
    Time until = 0;
    bool of_servers = false;
    std::string session;  // whose workers it concerns, unless `of_servers`
    std::map<std::pair<std::string, HostPlace>, control::Hello> told;
    size_t servers = 0;  // that were told
    bool servers_sent_home = false;
    int32_t num_servers = 0;  // of the job, as the culprit says
  };
  std::optional<Start> start_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_STARTUP_DISAGREEMENT_H_
