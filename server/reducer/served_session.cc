#include "server/reducer/served_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace byteps {

absl::StatusOr<std::unique_ptr<ServedSession>> ServedSession::Make(const control::Epoch& epoch,
                                                                   const SessionLimits& limits, Pool* pool) {
  absl::StatusOr<Contributors> contributors = Contributors::Make(epoch);
  if (!contributors.ok()) return contributors.status();
  const auto workers = static_cast<uint64_t>(epoch.workers_size());
  if (epoch.slot_bytes() == 0 || epoch.slot_bytes() > limits.slot_bytes) {
    return absl::InternalError(absl::StrCat("session ", epoch.session_id(), " wants slots of ", epoch.slot_bytes(),
                                            " bytes; this server has ", limits.slot_bytes));
  }
  auto session = std::make_unique<ServedSession>(limits.most_idle_parts);
  session->id = epoch.session_id();
  session->slot_bytes = epoch.slot_bytes();
  session->contributors = *std::move(contributors);
  for (const control::Member& worker : epoch.workers()) {
    session->workers.push_back(
        {worker.member(), absl::StrCat("rank ", worker.rank(), " (worker, host ", worker.host().name(), ", ",
                                       worker.host().address(), ", pid ", worker.pid(), ")")});
  }
  session->asynchronous = epoch.asynchronous();
  session->staleness = epoch.staleness();
  for (size_t rank = 0; epoch.asynchronous() && rank < workers; ++rank) {
    session->own_parts.push_back(std::make_unique<PartTable>(limits.most_idle_parts));
  }
  // As many slots as asked for, as long as they leave half of the memory for what waits.
  const uint64_t bytes_each = workers * session->slot_bytes;
  session->slots = static_cast<uint32_t>(
      std::clamp<uint64_t>(pool->stats().budget / 2 / bytes_each, 1, std::max<uint32_t>(limits.slots_per_peer, 1)));
  while (!pool->ReserveWindows(session->slots * bytes_each)) {
    if (session->slots == 1) {
      return absl::ResourceExhaustedError(
          absl::StrCat("BYTEPS_SERVER_MEMORY is too small: each lane has ", pool->stats().budget, " bytes, of which ",
                       pool->stats().windows + pool->stats().chunks, " are in use; ", workers,
                       " workers with one slot of ", session->slot_bytes, " bytes each need ", bytes_each, " more"));
    }
    session->slots /= 2;
  }
  return session;
}

PeerSpec ServedSession::LinkTo(const control::Epoch& epoch, uint32_t rank, const control::Member& self) const {
  PeerSpec spec;
  spec.session = epoch.session_id();
  spec.epoch = epoch.epoch();
  spec.session_nonce = epoch.nonce();
  spec.own_member = self.member();
  spec.member = workers[rank].peer;
  spec.lane = 0;
  spec.description = workers[rank].description;
  spec.id = workers[rank].peer;
  return spec;
}

const ServedWorker& WorkerOf(const Round& round, uint32_t index) {
  return round.session()->workers[round.of(index).rank];
}

}  // namespace byteps
