// What the coordinator does because time has passed: who is silent, who leaves, whom a start waits for, when it ends.
#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/base/time_text.h"
#include "server/membership/coordinator.h"
#include "server/membership/coordinator_connection.h"
#include "server/membership/envelopes.h"

namespace byteps {

void Coordinator::Tick(Time now) {
  now_ = now;
  if (over_) return;
  FailBrokenSessions();
  DropSilentConnections(now);
  EndLateGoodbyes(now);
  for (const auto& [id, session] : sessions_) {
    if (session->active()) SendBarrierAnswers(*session, session->barriers->Tick(now));
  }
  AnnounceMissing(now);
  CheckLinger(now);
  CheckGivenUp(now);
  CheckStart(now);
}

void Coordinator::DropSilentConnections(Time now) {
  std::vector<std::pair<ConnectionId, absl::Status>> silent;
  for (const auto& [id, connection] : connections_) {
    if (connection->member == nullptr) {
      if (now >= After(connection->opened, options_.hello_timeout)) {
        silent.emplace_back(id,
                            absl::DeadlineExceededError("no greeting within " + SecondsText(options_.hello_timeout)));
      }
    } else if (now >= After(connection->last_heard, options_.peer_timeout)) {
      silent.emplace_back(
          id, absl::DeadlineExceededError("silent for " + SecondsText(WholeSeconds(now - connection->last_heard)) +
                                          ": its host or the network is gone, or it was stopped"));
    }
  }
  for (const auto& [id, why] : silent) {
    if (connections_.count(id) == 0) continue;  // one of the others took it along
    // Should it wake up, it shall know why it is alone.
    handler_->Send(id, FailureEnvelope(Annotate(why, "the coordinator has given this connection up"), 0, 0));
    OnClosed(now, id, why);
    handler_->Close(id);
  }
}

void Coordinator::EndLateGoodbyes(Time now) {
  std::vector<ConnectionId> late;
  for (const auto& [id, connection] : connections_) {
    const JobMember* member = connection->member.get();
    if (member != nullptr && member->leaving && now >= member->goodbye_deadline) late.push_back(id);
  }
  for (const ConnectionId id : late) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;  // likewise
    JobMember* member = found->second->member.get();
    control::Envelope envelope;
    const std::string staying = member->session->Staying();
    envelope.mutable_goodbye_reply()->set_staying(staying);
    BPS_LOG(*log_, kInfo) << member->Describe() << " has left in order; still there: " << staying;
    handler_->Send(id, envelope);
    Depart(member, absl::OkStatus());
    handler_->Close(id);
  }
}

Time Coordinator::NextTimer() const {
  if (over_) return kNever;
  Time next = std::min({linger_deadline_, announce_at_, start_deadline_, stay_until_});
  for (const auto& [id, connection] : connections_) {
    const JobMember* member = connection->member.get();
    if (member == nullptr) {
      next = std::min(next, After(connection->opened, options_.hello_timeout));
      continue;
    }
    next = std::min(next, After(connection->last_heard, options_.peer_timeout));
    if (member->leaving) next = std::min(next, member->goodbye_deadline);
  }
  for (const auto& [id, session] : sessions_) {
    if (session->active()) next = std::min(next, session->barriers->NextTimer());
    if (!session->broken.ok()) next = now_;
  }
  return next;
}

void Coordinator::AnnounceMissing(Time now) {
  if (now < announce_at_) return;
  announce_at_ = kNever;
  for (const JobMember* server : servers_) SendWaiting(*server);
  for (const auto& [id, session] : sessions_) {
    if (!session->gathering()) continue;
    for (const JobMember* worker : session->workers) SendWaiting(*worker);
  }
}

void Coordinator::CheckLinger(Time now) {
  if (!sessions_.empty() || (now < linger_deadline_ && (!no_more_ || ServersOnTheirWay()))) return;
  Stop(now, absl::OkStatus());
}

bool Coordinator::ServersOnTheirWay() const {
  if (served_ || servers_came_) return false;
  return servers_.size() < static_cast<size_t>(std::max(0, options_.num_servers.value_or(0)));
}

// Workers that wait give up by themselves; servers, and members of a job that never came, hear it here.
void Coordinator::CheckStart(Time now) {
  if (over_ || now < start_deadline_) return;
  outcome_ = StartTimeout(now - created_);
  Stop(now, outcome_);
}

void Coordinator::CheckGivenUp(Time now) {
  if (over_ || now < stay_until_) return;
  outcome_ = given_up_;
  Stop(now, outcome_);
}

}  // namespace byteps
