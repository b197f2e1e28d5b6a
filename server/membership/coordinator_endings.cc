// How sessions, members and the job end for the coordinator: goodbyes, losses, and the errors that all members hear.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/auth.h"
#include "core/base/status.h"
#include "core/base/time_text.h"
#include "core/base/version.h"
#include "core/control/control_codec.h"
#include "core/wire/wire.h"
#include "server/membership/coordinator.h"
#include "server/membership/coordinator_connection.h"
#include "server/membership/envelopes.h"
#include "server/membership/epoch_plan.h"
#include "server/membership/membership.h"
#include "server/membership/missing_report.h"
#include "server/membership/server_ranks.h"
#include "server/membership/server_weights.h"

namespace byteps {
namespace {

// The same error with more words behind its own.
absl::Status Extended(const absl::Status& status, const std::string& more) {
  return absl::Status(status.code(), Message(status) + more);
}

}  // namespace

void Coordinator::FailSession(JobSession* session, const absl::Status& why, uint32_t member) {
  BPS_LOG(*log_, kWarning) << session->Title() << " fails: " << Message(why);
  if (session->gathering()) why_not_ = Message(why);
  const uint64_t id = session->id;
  const control::Envelope envelope = FailureEnvelope(why, member, id);
  if (session->active() && session->served) SendToServers(envelope);
  SendAway(*session, envelope);
  ForgetSession(id);
}

void Coordinator::FailGathering(const absl::Status& why) {
  std::vector<JobSession*> gathering;
  for (const auto& [id, session] : sessions_) {
    if (session->gathering()) gathering.push_back(session.get());
  }
  for (JobSession* session : gathering) FailSession(session, why, 0);
}

void Coordinator::EndIfEverybodyLeft(JobSession* session) {
  if (!session->EverybodyLeft()) return;
  BPS_LOG(*log_, kInfo) << session->Title() << " has ended";
  const uint64_t id = session->id;
  control::Envelope ended;
  ended.mutable_session_ended()->set_session_id(id);
  if (session->served) SendToServers(ended);
  control::Envelope reply;
  reply.mutable_goodbye_reply();
  SendAway(*session, reply);
  ForgetSession(id);
}

void Coordinator::Depart(JobMember* member, const absl::Status& why) {
  const ConnectionId connection = member->connection;
  const uint32_t id = member->id;
  JobSession* session = member->session;
  if (!member->worker()) return DepartServer(member, why);
  const auto place = std::find(session->workers.begin(), session->workers.end(), member);
  if (session->gathering()) {
    session->gone[PlaceOf(member->hello)] =
        DescribeWhere(member->hello.host(), member->hello.pid()) + " was here: " + Message(why);
    BPS_LOG(*log_, kInfo) << member->Describe() << " is gone before the start: " << Message(why);
    session->workers.erase(place);
    connections_.erase(connection);
    announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
    if (session->workers.empty()) ForgetSession(session->id);
    return;
  }
  if (!member->leaving) {
    const absl::Status death =
        absl::UnavailableError(member->Describe() + " is gone without a goodbye: " + Message(why));
    *place = nullptr;
    connections_.erase(connection);
    return FailSession(session, death, id);
  }
  *place = nullptr;
  session->left[id] = member->Describe();
  connections_.erase(connection);
  EndIfEverybodyLeft(session);
}

void Coordinator::DepartServer(JobMember* server, const absl::Status& why) {
  const uint32_t id = server->id;
  const absl::Status death = absl::UnavailableError(server->Describe() + " is gone: " + Message(why));
  BPS_LOG(*log_, kWarning) << Message(death);
  gone_servers_.push_back(Message(death) + "; another one may take its place");
  if (gone_servers_.size() > kMaxMissing) gone_servers_.pop_front();
  servers_.erase(std::find(servers_.begin(), servers_.end(), server));
  connections_.erase(server->connection);
  std::vector<JobSession*> active;
  for (const auto& [session_id, session] : sessions_) {
    if (session->active() && session->served) active.push_back(session.get());
  }
  for (JobSession* session : active) FailSession(session, death, id);
  announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
}

void Coordinator::OnGoodbye(JobMember* member, const control::Goodbye& goodbye) {
  JobSession* session = member->session;
  member->leaving = true;
  member->goodbye_deadline = After(now_, FromMilliseconds(std::max<int64_t>(goodbye.timeout_ms(), 0)));
  SendBarrierAnswers(*session, session->barriers->Leave(static_cast<uint32_t>(member->rank)));
  EndIfEverybodyLeft(session);
}

// A server cannot go on with a session, mostly because it has lost one of its workers.
void Coordinator::OnBroken(const JobMember& server, const control::Failure& failure) {
  const auto found = sessions_.find(failure.session_id());
  if (found == sessions_.end() || !found->second->active()) return;  // it has ended meanwhile
  JobSession* session = found->second.get();
  // The links of a member that has said goodbye may close.
  if (session->HasLeft(failure.member())) return FailOnMissingMember(session, failure.member());
  const JobMember* lost = session->Find(failure.member());
  const std::string who = lost == nullptr ? "session \"" + session->name + "\"" : lost->Describe();
  if (!session->broken.ok()) return;
  session->broken =
      MakeStatus(failure.code() == BPS_OK ? BPS_UNAVAILABLE : failure.code(),
                 who + " is lost to " + server.Describe() + ": " + failure.error().substr(0, kMaxLastWords));
  session->broken_by = failure.member();
}

// Runs when every message that has come is read: the lost member may have said goodbye, which is no loss, or why it
// ends, which is the cause.
void Coordinator::FailBrokenSessions() {
  std::vector<JobSession*> broken;
  for (const auto& [id, session] : sessions_) {
    if (!session->broken.ok()) broken.push_back(session.get());
  }
  for (JobSession* session : broken) {
    const uint32_t member = session->broken_by;
    absl::Status why = std::exchange(session->broken, absl::OkStatus());
    if (session->HasLeft(member)) {
      FailOnMissingMember(session, member);
      continue;
    }
    const auto trouble = session->troubles.find(member);
    if (trouble != session->troubles.end() && !absl::IsUnavailable(trouble->second)) {
      why = trouble->second;
    } else if (trouble != session->troubles.end()) {
      // Both ends of a link report that it is gone: the cause may be in either report, so the error has both.
      why = Extended(why, "; " + Message(trouble->second));
    }
    if (const JobMember* lost = session->Find(member); lost != nullptr) {
      // A link that fails in one direction only: the member got no answer and gave up, and its report did not arrive.
      const Time silence = now_ - connections_.at(lost->connection)->last_heard;
      if (silence / 3 * 2 > options_.heartbeat) {
        why = Extended(why,
                       "; the coordinator has not heard of it for " + SecondsText(WholeSeconds(silence)) + " either");
      }
    }
    FailSession(session, why, member);
  }
}

// A worker has lost another one, or a server has told it so. The coordinator learns of a death itself, from the closed
// connection, and soon. A worker that cannot go on for another reason, or has lost a server, gives up soon; if others
// report the loss of its links before, its own report is already here.
void Coordinator::OnWorkerBlocked(const JobMember& worker, const control::Failure& failure) {
  JobSession* session = worker.session;
  session->stuck = true;
  uint32_t lost = failure.member();
  if (lost == 0) {
    session->troubles.try_emplace(
        worker.id, MakeStatus(failure.code() == BPS_OK ? BPS_UNAVAILABLE : failure.code(),
                              worker.Describe() + " cannot go on: " + failure.error().substr(0, kMaxLastWords)));
  }
  if (!session->HasLeft(lost)) lost = session->missed;
  if (lost != 0) FailOnMissingMember(session, lost);
}

// A member has said goodbye, and its links are closed. A session that does not need it any more goes on. One that does
// fails as after a death, with this cause.
void Coordinator::FailOnMissingMember(JobSession* session, uint32_t member) {
  session->missed = member;
  if (!session->stuck) return;
  FailSession(session,
              absl::UnavailableError(session->NameOf(member) +
                                     " has left the session before the others: it has called shutdown, or its "
                                     "program has ended"),
              member);
}

// A server leaves when its process is told to end. Sessions that need it fail as by its death.
void Coordinator::OnServerGoodbye(JobMember* member) {
  const ConnectionId id = member->connection;
  control::Envelope reply;
  reply.mutable_goodbye_reply();
  handler_->Send(id, reply);
  Depart(member, absl::CancelledError("it was told to end"));
  Drop(id);
}

}  // namespace byteps
