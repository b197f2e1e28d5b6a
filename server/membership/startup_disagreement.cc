#include "server/membership/startup_disagreement.h"

#include <vector>

namespace byteps {
namespace {

std::pair<std::string, HostPlace> KeyOf(const control::Hello& worker) { return {worker.session(), PlaceOf(worker)}; }

// What counts the others.
control::Hello Counts(const control::Hello& worker) {
  control::Hello counts;
  counts.set_role(worker.role());
  counts.set_num_hosts(worker.num_hosts());
  counts.set_host_index(worker.host_index());
  counts.set_local_size(worker.local_size());
  counts.set_local_rank(worker.local_rank());
  counts.set_num_servers(worker.num_servers());
  return counts;
}

}  // namespace

void StartupDisagreement::Remember(Time now, const absl::Status& why, const control::Hello& culprit,
                                   const JobSessions& sessions, size_t servers) {
  Start start;
  start.why = why;
  start.until = After(now, kLateness);
  start.of_servers = culprit.role() == control::SERVER;
  start.session = culprit.session();
  start.num_servers = culprit.num_servers();
  start.servers = servers + (start.of_servers ? 1 : 0);
  if (!start.of_servers) start.told[KeyOf(culprit)] = Counts(culprit);
  for (const auto& [id, session] : sessions) {
    if (!start.of_servers && session->name != start.session) continue;
    if (!session->gathering()) return;
    for (const JobMember* worker : session->workers) start.told[KeyOf(worker->hello)] = Counts(worker->hello);
  }
  start_ = std::move(start);
}

absl::Status StartupDisagreement::Tell(Time now, const control::Hello& worker) {
  if (!start_) return absl::OkStatus();
  if (!start_->of_servers && start_->session != worker.session()) return absl::OkStatus();
  if (now < start_->until && start_->told.emplace(KeyOf(worker), Counts(worker)).second) return start_->why;
  start_.reset();
  return absl::OkStatus();
}

void StartupDisagreement::SendServersHome() {
  if (start_) start_->servers_sent_home = true;
}

absl::Status StartupDisagreement::TellServer(Time now) {
  if (!start_ || !start_->servers_sent_home) return absl::OkStatus();
  if (now < start_->until && start_->servers < static_cast<size_t>(start_->num_servers)) {
    ++start_->servers;
    return start_->why;
  }
  start_.reset();
  return absl::OkStatus();
}

bool StartupDisagreement::AllTold() const {
  if (!start_ || start_->told.empty() || start_->servers < static_cast<size_t>(start_->num_servers)) return false;
  const auto& [key, first] = *start_->told.begin();
  std::vector<const control::Hello*> workers;
  std::map<int32_t, int32_t> local_sizes;
  for (const auto& [other, worker] : start_->told) {
    const int32_t local_size = local_sizes.emplace(worker.host_index(), worker.local_size()).first->second;
    if (other.first != key.first || worker.num_hosts() != first.num_hosts() ||
        worker.num_servers() != start_->num_servers || worker.local_size() != local_size) {
      return false;
    }
    workers.push_back(&worker);
  }
  return MissingWorkers(workers).empty();
}

void StartupDisagreement::OnServerAdded() {
  if (start_ && start_->of_servers) start_.reset();
}

}  // namespace byteps
