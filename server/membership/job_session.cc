#include "server/membership/job_session.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace byteps {

const char* SessionStateName(SessionState state) { return state == SessionState::kGathering ? "gathering" : "active"; }

std::string JobSession::Title() const { return "session \"" + name + "\" generation " + std::to_string(generation); }

std::vector<const control::Hello*> JobSession::Hellos() const {
  std::vector<const control::Hello*> hellos;
  for (const JobMember* worker : workers) hellos.push_back(&worker->hello);
  return hellos;
}

std::vector<std::string> JobSession::Missing() const {
  std::vector<std::string> missing = MissingWorkers(Hellos());
  for (const auto& [place, why] : gone) {
    if (missing.size() <= 2 * kMaxMissing) missing.push_back("(" + why + ")");
  }
  if (!missing.empty() && !refused.empty()) missing.push_back("(refused: " + refused + ")");
  return missing;
}

void JobSession::Activate(std::vector<JobMember*> by_rank, PlacementOptions placement, bool with_servers) {
  state = SessionState::kActive;
  served = with_servers;
  workers = std::move(by_rank);
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    JobMember& worker = *workers[rank];
    worker.rank = static_cast<int32_t>(rank);
    names.push_back("rank " + std::to_string(rank) + " (" + DescribeWhere(worker.hello.host(), worker.hello.pid()) +
                    ")");
  }
  gone.clear();
  refused.clear();
  tensors = std::make_unique<TensorDirectory>(std::move(placement));
  barriers = std::make_unique<BarrierBook>(static_cast<uint32_t>(workers.size()),
                                           [this](uint32_t rank) { return names[rank]; });
}

std::vector<JobMember*> JobSession::Present() const {
  std::vector<JobMember*> present;
  for (JobMember* worker : workers) {
    if (worker != nullptr) present.push_back(worker);
  }
  return present;
}

JobMember* JobSession::Find(uint32_t member) const {
  for (JobMember* worker : workers) {
    if (worker != nullptr && worker->id == member) return worker;
  }
  return nullptr;
}

bool JobSession::HasLeft(uint32_t member) const {
  const JobMember* worker = Find(member);
  return left.count(member) != 0 || (worker != nullptr && worker->leaving);
}

std::string JobSession::NameOf(uint32_t member) const {
  if (const JobMember* worker = Find(member)) return worker->Describe();
  const auto gone_by = left.find(member);
  return gone_by == left.end() ? "" : gone_by->second;
}

bool JobSession::Ending() const {
  return std::any_of(workers.begin(), workers.end(),
                     [](const JobMember* worker) { return worker == nullptr || worker->leaving; });
}

bool JobSession::EverybodyLeft() const {
  for (const JobMember* worker : workers) {
    if (worker != nullptr && !worker->leaving) return false;
  }
  return true;
}

std::string JobSession::Staying() const {
  std::string staying;
  for (const JobMember* worker : workers) {
    if (worker == nullptr || worker->leaving) continue;
    staying += (staying.empty() ? "" : ", ") + names[static_cast<size_t>(worker->rank)];
  }
  return staying;
}

}  // namespace byteps
