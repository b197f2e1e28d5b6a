// discord.h - a start that failed because somebody does not agree with the others, remembered for those who come late.
//
//     discord.Remember(now, why, culprit_hello, sessions);            // of one session, or, by a server, of all
//     absl::Status late = discord.Tell(now, worker_hello);            // why, if this worker belongs to that start
//     discord.OnServerAdded();
//
// They hear why at once, and do not wait for who has gone. Who comes a second time, or the server that was in the wrong
// and now is not, has been started anew: then it is forgotten.
//
// Threads: none.
#ifndef BYTEPS_SERVER_DISCORD_H_
#define BYTEPS_SERVER_DISCORD_H_

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/control.pb.h"
#include "core/time.h"
#include "server/job_session.h"
#include "server/membership.h"

namespace byteps {

class Discord {
 public:
  // Call before the sessions that gather fail of it. Beside a session that runs, `culprit` is a stranger who is wrong,
  // and nobody comes late: then nothing is remembered.
  void Remember(Time now, const absl::Status& why, const control::Hello& culprit, const JobSessions& sessions);

  // What a worker that comes late for such a start is told; OK: it has nothing to do with one.
  absl::Status Tell(Time now, const control::Hello& worker);

  // A server has joined that agrees with everybody.
  void OnServerAdded();

 private:
  struct Start {
    absl::Status why;
    Time until = 0;
    bool of_servers = false;
    std::string session;  // whose workers it concerns, unless `of_servers`
    std::set<std::pair<std::string, HostPlace>> told;
  };
  std::optional<Start> start_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_DISCORD_H_
