// What the engine does about rounds in which a rank takes no part of its own: one that has joined (joins.h), and one
// that gives a round up (bps_give_up).
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/worker/engine/engine.h"
#include "core/worker/tensor/flight_place.h"

namespace byteps {

// ---- Joins ----

AbsentPart Engine::AbsentPartOf(const Operation& operation) const {
  const Submission& from = operation.asked;
  Collective asked;
  asked.kind = from.kind == wire::Operation::kPushPull ? CollectiveKind::kAllReduce : CollectiveKind::kBroadcast;
  asked.reduction = from.reduction;
  asked.name = from.tensor->name().text();
  asked.set = ProcessSet::All(size_);
  asked.dtype = from.tensor->dtype();
  asked.shape = from.tensor->shape();
  asked.root = from.root;
  asked.scaled = from.scaled;
  asked.prescale = from.prescale;
  asked.postscale = from.postscale;
  asked.match = from.match;
  asked.group_size = from.group_size;
  asked.group_index = from.group_index;
  asked.timeout = from.timeout;
  AbsentPart part = AbsentPart::Of(asked, static_cast<int32_t>(own_rank_), operation.round);
  part.through_stages = true;
  return part;
}

void Engine::TellAbsent(Time now, const Operation& operation, uint32_t rank) {
  if (operation.asked.tensor->asynchronous()) return;  // waits for no other rank
  collectives_->joins().Tell(now, rank, AbsentPartOf(operation));
}

// A rank that joins later may not have come to it.
void Engine::RememberFailed(const Operation& operation) {
  Joins& joins = collectives_->joins();
  if (operation.asked.tensor->asynchronous() || joins.Holds(operation.asked.request.get())) return;
  joins.Remember(AbsentPartOf(operation));
}

void Engine::OnAbsent(Time now, uint32_t rank) {
  for (const auto& [id, operation] : operations_) {
    // What only takes part with zeros, another rank has submitted: that one tells, when it has heard of the join.
    if (!collectives_->joins().Holds(operation->asked.request.get())) TellAbsent(now, *operation, rank);
  }
}

bool Engine::OnTakePart(Time now, const AbsentPart& part) {
  bool took = false;
  // Rounds that this rank has not submitted before the one it is told of were given up by those that had.
  while (const std::optional<bool> last = TakePart(now, part)) {
    took = *last;
    if (took) break;
  }
  return took;
}

// Takes part in the next round of its name, up to that of `part`: whether that was it, or nothing is to be done;
// nullopt: an operation of the name is in flight.
std::optional<bool> Engine::TakePart(Time now, const AbsentPart& part) {
  const absl::StatusOr<Tensor*> tensor = tensors_.Declare(part.asked.name, part.asked.body.dtype, part.asked.shape);
  if (!tensor.ok() || !failure_.ok()) return true;
  TensorName& name = (*tensor)->name();
  if (name.rounds > part.asked.body.round) return true;
  if (absl::Status gap = part.CheckGap(name.rounds); !gap.ok()) return OnCollectivesFatal(gap, 0), true;
  absl::StatusOr<Collective> zero = part.ToCollective(static_cast<int32_t>(own_rank_), size_);
  if (!zero.ok()) return true;
  if (!name.place().Enter()) return std::nullopt;
  const bool last = name.rounds == part.asked.body.round;
  Submission asked;
  asked.tensor = *tensor;
  asked.kind =
      part.asked.kind() == CollectiveKind::kBroadcast ? wire::Operation::kBroadcast : wire::Operation::kPushPull;
  asked.reduction = zero->reduction;
  asked.root = zero->root;
  asked.match = zero->match;
  asked.group_size = zero->group_size;
  asked.group_index = zero->group_index;
  asked.scaled = zero->scaled;
  asked.prescale = zero->prescale;
  asked.postscale = zero->postscale;
  asked.timeout = zero->timeout;
  asked.request = std::make_shared<Request>(nullptr, nullptr);
  asked.output = collectives_->joins().Hold(asked.request.get(), (*tensor)->bytes());
  asked.input = asked.output;
  const absl::Status none =
      last ? part.CheckZeros(absl::StrCat("rank ", own_rank_)) : absl::AbortedError("it was given up");
  if (none.ok()) {
    Submit(now, std::move(asked));
  } else {
    Refuse(now, std::move(asked), none);
  }
  return last;
}

// ---- Rounds that are given up ----

// Gives an operation up before any stage has it, so that none ends it well.
void Engine::Refuse(Time now, Submission asked, const absl::Status& why) {
  Operation* operation = Take(now, std::move(asked));
  by_request_.emplace(operation->asked.request.get(), operation);
  RefuseTaken(operation, why);
}

void Engine::RefuseTaken(Operation* operation, const absl::Status& why) {
  Owe(*operation, why);
  End(operation, why);
}

// Tells the other ranks that a round is given up which no stage has, as soon as it is known where they hear of it.
void Engine::Owe(const Operation& operation, const absl::Status& why) {
  Tensor* tensor = operation.asked.tensor;
  tensor->owed.push_back({operation.round, operation.fingerprint, why});
  if (assignments_.CutFor(tensor, operation.round)) OnAssigned(tensor);
}

// A round that is given up comes behind the operation of its name that is in flight.
bool Engine::RunGivenUp(Time now) {
  bool worked = false;
  for (auto next = given_up_.begin(); next != given_up_.end();) {
    if (!next->tensor->name().place().TakeTurn()) {
      ++next;
      continue;
    }
    worked = true;
    Submission asked = std::move(*next);
    next = given_up_.erase(next);
    const absl::Status why = asked.given_up;
    Operation* operation = Take(now, std::move(asked));
    by_request_.emplace(operation->asked.request.get(), operation);
    if (collectives_ != nullptr && collectives_->joins().any_absent()) {
      for (const uint32_t rank : collectives_->joins().absent()) TellAbsent(now, *operation, rank);
    }
    Owe(*operation, why);
    End(operation, Retryable(Annotate(why, DescribeOperation(*operation))));
  }
  return worked;
}

Operation* Engine::OnStaged(uint64_t id, uint64_t round) {
  for (const auto& [key, operation] : operations_) {
    if (operation->round != round) continue;
    if (Collective::IdOfName(operation->asked.tensor->name().text()) == id) return operation.get();
  }
  return nullptr;
}

void Engine::EndGivenUp(const absl::Status& why) {
  for (const Submission& asked : std::exchange(given_up_, {})) {
    Withdraw(asked);
    completions_.push_back({asked.request, why});
  }
}

}  // namespace byteps
