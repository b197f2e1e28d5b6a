#include "server/discord.h"

namespace byteps {
namespace {

// How much later than the others of its start a member may come.
constexpr Time kLateness = 60 * kSecond;

}  // namespace

void Discord::Remember(Time now, const absl::Status& why, const control::Hello& culprit, const JobSessions& sessions) {
  Start start;
  start.why = why;
  start.until = After(now, kLateness);
  start.of_servers = culprit.role() == control::SERVER;
  start.session = culprit.session();
  if (!start.of_servers) start.told.insert({culprit.session(), PlaceOf(culprit)});
  for (const auto& [id, session] : sessions) {
    if (!start.of_servers && session->name != start.session) continue;
    if (!session->gathering()) return;
    for (const JobMember* worker : session->workers) start.told.insert({session->name, PlaceOf(worker->hello)});
  }
  start_ = std::move(start);
}

absl::Status Discord::Tell(Time now, const control::Hello& worker) {
  if (!start_) return absl::OkStatus();
  if (!start_->of_servers && start_->session != worker.session()) return absl::OkStatus();
  if (now < start_->until && start_->told.insert({worker.session(), PlaceOf(worker)}).second) return start_->why;
  start_.reset();
  return absl::OkStatus();
}

void Discord::OnServerAdded() {
  if (start_ && start_->of_servers) start_.reset();
}

}  // namespace byteps
