// What collectives among workers do for ranks that have joined: see joins.h.
#include <utility>

#include "core/worker/collectives/collectives.h"

namespace byteps {

// Rounds that this rank has not submitted before this one were given up by all that had.
bool Collectives::OnTakePart(Time now, const AbsentPart& part) {
  now_ = now;
  if (part.through_stages) return sink_->OnTakePart(now, part);
  const uint64_t id = part.asked.body.id, number = part.asked.body.round;
  if (part.asked.shares_name()) rounds_.Advance(id, sink_->OnName(part.asked.name)->rounds);
  if (rounds_.submitted(id) > number) return true;
  absl::StatusOr<Collective> zero = part.ToCollective(own_rank_, job_size_);
  const absl::Status none = part.CheckZeros(links_.description(static_cast<uint32_t>(own_rank_)));
  if (absl::Status gap = part.CheckGap(rounds_.submitted(id)); !gap.ok()) return Fatal(gap, 0), true;
  while (rounds_.submitted(id) < number) {
    Refuse(now, part, rounds_.submitted(id), absl::AbortedError("it was given up"));
  }
  if (!zero.ok() || !none.ok()) {
    Refuse(now, part, number, zero.ok() ? none : zero.status());
    return true;
  }
  if (!Take(*zero).ok()) return false;
  zero->request = std::make_shared<Request>(nullptr, nullptr);
  zero->result = std::make_shared<CollectiveResult>();
  zero->input = joins_.Hold(zero->request.get(), zero->bytes());
  Submit(now, *std::move(zero));
  return true;
}

// Counts the round as submitted, and gives it up.
void Collectives::Refuse(Time now, const AbsentPart& part, uint64_t number, const absl::Status& why) {
  const uint64_t id = part.asked.body.id;
  rounds_.Skip(id);
  if (part.asked.shares_name()) ++sink_->OnName(part.asked.name)->rounds;
  for (const int32_t rank : part.ranks) {
    if (rank == own_rank_ || rank < 0 || static_cast<uint32_t>(rank) >= job_size_) continue;
    links_.Want(now, static_cast<uint32_t>(rank));
    SendAbort(static_cast<uint32_t>(rank), id, number, why, false);
  }
}

void Collectives::OnAbsent(Time now, uint32_t rank) {
  for (const PeerRound* round : rounds_.Submitted()) {
    if (!round->asked().set->PlaceOf(rank) || joins_.Holds(round->asked().request.get())) continue;
    joins_.Tell(now, rank, AbsentPart::Of(round->asked(), own_rank_, round->number()));
  }
  sink_->OnAbsent(now, rank);
}

void Collectives::OnJoinDone(std::shared_ptr<Request> request, const absl::Status& outcome) {
  sink_->OnCollectiveDone(std::move(request), outcome);
}

}  // namespace byteps
