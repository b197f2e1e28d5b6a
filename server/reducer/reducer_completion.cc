// How a round is completed: folded from where its contributions are, in one pass or as they come, and delivered.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/crc32c.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/wire/push_head.h"
#include "server/reducer/push_check.h"
#include "server/reducer/reducer.h"
#include "server/reducer/round_errors.h"

namespace byteps {
// The same, and what is at its workers is fetched. False: it could not be, and the round is no more.
bool Reducer::FoldRest(Round* round) {
  for (holdings_.FoldPrefix(round); round->next() < round->last(); holdings_.FoldPrefix(round)) {
    const uint32_t index = round->next();
    if (round->of(index).state != ContributionState::kAtWorker) break;
    const WorkerMemory::Result result = memory_.Read(*round, index);
    if (Refused(round, result)) break;
    if (result.code != BPS_OK) return Unreachable(round, result), false;
    ++stats_.in_place;
    holdings_.Fold(round, index, memory_.read());
  }
  return true;
}

// ---- Completion ----

// Folds everything into the result; `last` has its bytes at `payload`, or in its slot. False without memory for
// it: then nothing has happened.
bool Reducer::CompleteInOnePass(Round* round, uint32_t last, const std::byte* payload) {
  if (round->bytes() == 0) {
    DeliverInline(round);
    return true;
  }
  if (round->has_accumulator()) {
    holdings_.FoldPrefix(round);
    if (last != kNobody) holdings_.Fold(round, last, payload);
    holdings_.FoldPrefix(round);
    CompleteFromAccumulator(round);
    return true;
  }
  inputs_.clear();
  for (uint32_t index = round->first(); index < round->last(); ++index) {
    inputs_.push_back(index == last && payload != nullptr ? payload : holdings_.PayloadOf(*round, index));
  }
  const bool in_record = round->bytes() <= inline_bytes_;
  Block block;
  void* output = scratch_.data();
  if (!in_record) {
    // The first input's own block can hold the result.
    block = std::move(round->of(round->first()).block);
    if (!block) block = pool_.Take(round->bytes());
    if (!block) return false;
    output = block.data();
  }
  Reduce(round->reduction(), inputs_, round->groups(), output, round->elements());
  Finish(round, std::move(block));
  return true;
}

// Folds the first of the rounds that only wait for that.
bool Reducer::FoldReady() {
  if (ready_.empty()) return false;
  Round* round = ready_.Take();
  Guarded(round->session(), [&] { Complete(round); });
  return true;
}

void Reducer::Complete(Round* round) {
  if (round->kept != nullptr) return ApplyInPlace(round);
  // One whose slot was needed may have been dropped meanwhile.
  if (round->count(ContributionState::kDropped) == 0) {
    if (!round->has_accumulator()) {
      if (CompleteInPlace(round)) return;
    } else {
      if (!Reach(round) || !FoldRest(round)) return;
      if (round->next() == round->last()) return CompleteFromAccumulator(round);
    }
  }
  AwaitMemory(round);
}

// Folds everything from where it is, block by block, and writes each block to where it is wanted in place. False
// without memory for the result of those that want it elsewhere, or if a contribution must be asked for: then nothing
// has happened.
bool Reducer::CompleteInPlace(Round* round) {
  const bool in_record = round->bytes() <= inline_bytes_;
  bool elsewhere = false;
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    elsewhere |= !round->of(index).in_place;
  }
  Block block;
  std::byte* to = nullptr;
  if (in_record) {
    to = reinterpret_cast<std::byte*>(scratch_.data());
  } else if (elsewhere) {
    block = pool_.Take(round->bytes());
    if (!block) return false;
    to = block.data();
  }
  inputs_.clear();
  uint32_t at_workers = 0;
  for (uint32_t index = round->first(); index < round->last(); ++index) {
    const bool at_worker = round->of(index).state == ContributionState::kAtWorker;
    if (at_worker) ++at_workers;
    inputs_.push_back(at_worker ? nullptr : holdings_.PayloadOf(*round, index));
  }
  const WorkerMemory::Result result = memory_.Fold(*round, inputs_, !in_record, to);
  if (result.code == BPS_TRANSPORT_AGAIN && !result.begun) return awaited_.Add(now_, round), true;
  if (Refused(round, result)) return false;
  if (result.code != BPS_OK) return Unreachable(round, result), true;
  stats_.in_place += at_workers;
  stats_.mapped += result.mapped;
  Finish(round, std::move(block));
  return true;
}

bool Reducer::Reach(Round* round) {
  const WorkerMemory::Result result = memory_.Reach(*round);
  if (result.code == BPS_TRANSPORT_AGAIN) return awaited_.Add(now_, round), false;
  if (result.code != BPS_OK) return Unreachable(round, result), false;
  return true;
}

// Rounds that stood aside go on if their memory is here.
void Reducer::GoOn(Round* round) {
  if (round->state() == RoundState::kRecalling) {
    Recall(round);
  } else if (Reach(round)) {
    ready_.Add(round);
  }
}

// The system does not let us at this worker's memory any more, as it did when it was tried: from now on by slots.
// Nothing is lost if nothing was written yet: then its contribution is one that has to be asked for. False: that is not
// so.
bool Reducer::Refused(Round* round, const WorkerMemory::Result& result) {
  if (result.code != BPS_UNIMPLEMENTED) return false;
  probe_.Retract(WorkerOf(*round, result.index).peer);
  Contribution& contribution = round->of(result.index);
  if (result.begun || contribution.state != ContributionState::kAtWorker) return false;
  ++stats_.dropped;
  contribution.in_place = false;
  round->SetState(result.index, ContributionState::kDropped);
  return true;
}

// The memory of a worker cannot be read or written: the end of the round, or, if the worker is lost, of the session.
// The worker reports next why it took the memory away: it has given the round up, or its session has failed. The others
// are told that cause.
void Reducer::Unreachable(Round* round, const WorkerMemory::Result& result) {
  const int32_t code = result.code;
  const PeerId peer = WorkerOf(*round, result.index).peer;
  const std::string who = WorkerOf(*round, result.index).description;
  if (code == BPS_UNAVAILABLE) {
    return OnPeerDown(peer, absl::UnavailableError(absl::StrCat(
                                "the connection to ", who, " is lost: its memory cannot be read or written any more")));
  }
  const bool ours = code == BPS_UNIMPLEMENTED || code == BPS_NOT_FOUND || code == BPS_TRANSPORT_AGAIN;
  round->SetPendingError(
      MakeStatus(ours ? BPS_ABORTED : code, absl::StrCat("the memory of ", who, " could not be read or written")));
  round->ShortenDeadline(After(now_, kLossGrace));
  next_deadline_ = std::min(next_deadline_, round->deadline());
}

void Reducer::CompleteFromAccumulator(Round* round) {
  if (round->bytes() <= inline_bytes_) {
    round->accumulator().Finish(scratch_.data());
    round->TakeAccumulator();
    return DeliverInline(round);
  }
  Accumulation fold = round->accumulator();
  Block block = round->TakeAccumulator();
  fold.Finish(block.data());
  WorkerMemory::Result result = memory_.Write(*round, block.data());
  // Who cannot be written to gets it as those do whose contribution came by a slot.
  for (; result.code == BPS_UNIMPLEMENTED; result = memory_.Write(*round, block.data())) {
    probe_.Retract(WorkerOf(*round, result.index).peer);
    round->of(result.index).in_place = false;
  }
  if (result.code != BPS_OK) return Unreachable(round, result);
  Deliver(round, std::move(block));
}

// Everything is folded. `block`: the result, unless it is in scratch_ or has been written in place.
void Reducer::Finish(Round* round, Block block) {
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    holdings_.Clear(round, index, ContributionState::kFolded);
  }
  if (round->bytes() <= inline_bytes_) return DeliverInline(round);
  Deliver(round, std::move(block));
}

void Reducer::Deliver(Round* round, Block block) {
  deliveries_.AddResult(*round, std::move(block));
  Over(round);
}

// The result is in scratch_.
void Reducer::DeliverInline(Round* round) {
  deliveries_.AddInlineResult(*round, std::as_bytes(std::span(scratch_)).first(round->bytes()));
  Over(round);
}

void Reducer::Over(Round* round) {
  round->Move(RoundState::kOver);
  ++stats_.rounds;
  stats_.bytes += round->bytes();
  Part* part = round->part();
  part->any_over = true;
  part->over = round->number();
  part->failed.reset();
  Unlist(round);
  Close(round);
}

// ---- Short of memory ----

void Reducer::AwaitMemory(Round* round) {
  round->Move(RoundState::kAwaitingMemory);
  awaiting_memory_.push_back(round);
}

bool Reducer::ResumeAwaitingMemory() {
  bool worked = false;
  while (!awaiting_memory_.empty()) {
    Round* round = awaiting_memory_.front();
    if (!round->has_accumulator()) {
      Block memory = pool_.Take(round->accumulator_bytes());
      if (!memory) memory = pool_.TakeReserve();
      if (!memory) break;
      round->StartAccumulator(std::move(memory));
    }
    awaiting_memory_.pop_front();
    worked = true;
    Guarded(round->session(), [&] {
      round->Move(RoundState::kRecalling);
      Recall(round);
    });
  }
  return worked;
}

// Folds what can be folded, and asks for the next.
void Reducer::Recall(Round* round) {
  if (!Reach(round) || !FoldRest(round)) return;
  if (round->next() == round->last()) return CompleteFromAccumulator(round);
  const uint32_t index = round->next();
  if (round->of(index).state != ContributionState::kDropped) return;
  round->SetState(index, ContributionState::kAsked);
  wire::RoundBody body = BodyOf(round->header());
  body.rank = round->of(index).rank;
  ++stats_.sent_again;
  endpoint_.Send(WorkerOf(*round, index).peer, wire::RecordType::kSendAgain, BytesOf(body));
}

}  // namespace byteps
