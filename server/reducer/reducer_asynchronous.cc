// Asynchronous tensors: a push is added to the value that the server keeps, and answered with it at once, or when the
// slowest worker has come near enough (BYTEPS_STALENESS). Each worker has rounds of its own, of one contribution.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/status.h"
#include "core/reduce/reduce.h"
#include "server/reducer/kept_value.h"
#include "server/reducer/reducer.h"

namespace byteps {

// The contribution is at `payload`, or, if that is null, in its slot.
void Reducer::Apply(Round* round, const std::byte* payload) {
  KeptValue* value = round->kept;
  inputs_.assign({value->memory.data(), payload != nullptr ? payload : holdings_.PayloadOf(*round, 0)});
  Reduce(round->reduction(), inputs_, {}, value->memory.data(), round->elements());
  holdings_.Clear(round, 0, ContributionState::kFolded);
  ++value->pushes[round->of(0).rank];
  value->waiting.push_back(round);
  AnswerWaiting(value);
}

// The contribution is at its worker.
void Reducer::ApplyInPlace(Round* round) {
  if (!Reach(round)) return;
  const WorkerMemory::Result result = memory_.Read(*round, 0);
  // Then it is asked for, as one that was dropped.
  if (Refused(round, result)) return AskAgain(round);
  if (result.code != BPS_OK) return Unreachable(round, result);
  ++stats_.in_place;
  Apply(round, memory_.read());
}

void Reducer::AskAgain(Round* round) {
  round->SetState(0, ContributionState::kAsked);
  wire::RoundBody body = BodyOf(round->header());
  body.rank = round->of(0).rank;
  ++stats_.sent_again;
  endpoint_.Send(WorkerOf(*round, 0).peer, wire::RecordType::kSendAgain, BytesOf(body));
}

// Answers those that need not wait (any more).
void Reducer::AnswerWaiting(KeptValue* value) {
  const std::vector<Round*> waiting = value->waiting;
  for (Round* round : waiting) {
    // A worker whose link breaks here takes all rounds of its session along.
    if (std::find(value->waiting.begin(), value->waiting.end(), round) == value->waiting.end()) continue;
    if (value->TooFarAhead(round->of(0).rank, round->session()->staleness)) continue;
    if (!Answer(round)) unanswered_.push_back(round);
    std::erase(value->waiting, round);
  }
}

// False without memory for the result: then nothing has happened.
bool Reducer::Answer(Round* round) {
  const KeptValue& value = *round->kept;
  if (round->bytes() <= inline_bytes_) {
    std::memcpy(scratch_.data(), value.memory.data(), round->bytes());
    DeliverInline(round);
    return true;
  }
  Contribution& contribution = round->of(0);
  if (contribution.in_place) {
    const WorkerMemory::Result result = memory_.Write(*round, value.memory.data());
    if (result.code == BPS_OK) return Deliver(round, Block()), true;
    if (result.code != BPS_UNIMPLEMENTED) return Unreachable(round, result), true;
    // It gets the result as those do whose contribution came by a slot.
    probe_.Retract(WorkerOf(*round, 0).peer);
    contribution.in_place = false;
  }
  Block block = pool_.Take(round->bytes());
  if (!block) block = pool_.TakeReserve();
  if (!block) return false;
  std::memcpy(block.data(), value.memory.data(), round->bytes());
  Deliver(round, std::move(block));
  return true;
}

// Those whose answers lacked memory.
bool Reducer::AnswerUnanswered() {
  bool worked = false;
  while (!unanswered_.empty()) {
    Round* round = unanswered_.front();
    bool answered = true;  // an exception ends its session, and all rounds of it
    Guarded(round->session(), [&] { answered = Answer(round); });
    if (!answered) break;
    // An answer closes the round, which takes it off the list; one whose memory is out of reach stays open.
    if (!unanswered_.empty() && unanswered_.front() == round) unanswered_.pop_front();
    worked = true;
  }
  return worked;
}

}  // namespace byteps
