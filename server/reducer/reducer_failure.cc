// How a round fails: cancels, mismatches, deadlines and stalls, and the errors that its contributors hear.
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
namespace {

constexpr size_t kMostText = 4096;  // bytes of one error

}  // namespace

// ---- Failure ----

void Reducer::Fail(Round* round, const absl::Status& why) {
  Unlist(round);
  round->Move(RoundState::kFailed);
  ++stats_.failed;
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    if (round->of(index).state == ContributionState::kAbsent) continue;
    holdings_.Clear(round, index, ContributionState::kAbsent);
    wire::RoundBody body = BodyOf(round->header());
    body.rank = round->of(index).rank;
    SendError(WorkerOf(*round, index).peer, body, why);
  }
  Part* part = round->part();
  part->failed = std::make_unique<FailedRound>(FailedRound{round->number(), why});
  Close(round);
}

void Reducer::FailMismatch(Round* round, uint32_t rank, const Push& push) {
  const absl::Status why = MismatchError(*round, rank, push);
  const PeerId peer = round->session()->workers[rank].peer;
  Fail(round, why);
  SendError(peer, BodyOf(push.header), why);
}

void Reducer::OnCancel(PeerId peer, const Link& sender, std::span<const std::byte> body) {
  wire::RoundBody round;
  Link link = sender;
  if (!ReadStruct(body, &round) || round.text > body.size() - sizeof round || round.rank != link.rank) {
    return Violation(peer, link, absl::InvalidArgumentError("invalid CANCEL"));
  }
  if (!link.session->failure.ok()) return SendError(peer, round, link.session->failure);
  const bool asynchronous = (round.flags & wire::kFlagAsynchronous) != 0 && link.session->asynchronous;
  if (asynchronous) link.contributor = 0;
  Part* part = link.session->PartsOf(link.rank, asynchronous).Find(wire::NameId(round.key), round.part);
  if (part != nullptr && part->any_over && round.round <= part->over) {
    // Its result is with the worker, or on its way: RESULT is the answer. Unless nothing of it was sent.
    const std::optional<std::string> kept = deliveries_.Withdraw(peer, round.key, round.round, round.part);
    if (!kept) return;
    // One line for all parts of a tensor.
    const Kept late(round.key, round.round);
    if (round.code == BPS_DEADLINE_EXCEEDED && std::exchange(kept_, late) != late) {
      BPS_LOG(*log_, kWarning) << "lane " << options_.lane << ": " << link.session->workers[link.rank].description
                               << " gives a tensor up after its whole time; of part " << round.part << ": " << *kept;
    }
    SendError(peer, round, absl::CancelledError(absl::StrCat("given up: ", *kept)));
    return;
  }
  const size_t size = std::min<size_t>(round.text, kMostText);
  const std::string_view reason(reinterpret_cast<const char*>(body.data() + sizeof round), size);
  FailNumber(peer, link, round, GivenUpError(link.session->workers[link.rank].description, round.code, reason));
}

void Reducer::FailNumber(PeerId peer, const Link& link, const wire::RoundBody& round, const absl::Status& why) {
  if (!link.session->failure.ok()) return SendError(peer, round, link.session->failure);
  const bool asynchronous = (round.flags & wire::kFlagAsynchronous) != 0 && link.session->asynchronous;
  Part* part = link.session->PartsOf(link.rank, asynchronous).FindOrMake(wire::NameId(round.key), round.part);
  if (part->round != nullptr && part->round->number() == round.round) {
    const Contribution& contribution = part->round->of(link.contributor);
    const bool told = contribution.state != ContributionState::kAbsent && contribution.rank == link.rank;
    Fail(part->round, why);
    if (!told) SendError(peer, round, why);
    return;
  }
  if (part->round != nullptr && part->round->number() < round.round) {
    Fail(part->round, AbandonedError(link.session->workers[link.rank].description, round.round));
  }
  const bool news = part->round == nullptr && (!part->any_over || part->over < round.round) &&
                    (part->failed == nullptr || part->failed->number < round.round);
  if (news) part->failed = std::make_unique<FailedRound>(FailedRound{round.round, why});
  if (part->round == nullptr) part->table->SetIdle(part);
  SendError(peer, round, why);
}

void Reducer::SendError(PeerId peer, wire::RoundBody round, const absl::Status& why) {
  const size_t room = std::min(kMostText, endpoint_.MaxRecord() - sizeof round);
  const absl::string_view text = why.message().substr(0, room);
  round.code = StatusCode(why);
  round.text = static_cast<uint32_t>(text.size());
  const auto link = links_.find(peer);
  const bool over = link != links_.end() && !link->second.session->failure.ok();
  round.flags = over ? wire::kFlagSessionOver : 0;
  endpoint_.Send(peer, wire::RecordType::kError, BytesOf(round),
                 std::as_bytes(std::span<const char>(text.data(), text.size())));
}

bool Reducer::CheckDeadlines() {
  if (now_ < next_deadline_) return false;
  bool worked = false;
  next_deadline_ = kNever;
  for (size_t i = open_.size(); i-- > 0;) {
    Round* round = open_[i];
    if (round->deadline() <= now_) {
      Fail(round, round->pending_error().ok() ? OverdueError(now_, *round, awaited_.Contains(*round))
                                              : round->pending_error());
      worked = true;
    } else {
      if (DueAt(*round) <= now_) TellStall(round);
      next_deadline_ = std::min(next_deadline_, DueAt(*round));
    }
  }
  return worked;
}

Time Reducer::DueAt(const Round& round) const {
  if (round.stall_told) return round.deadline();
  return std::min(round.deadline(), After(round.opened(), options_.stall_warning));
}

void Reducer::TellStall(Round* round) {
  round->stall_told = true;
  const bool ahead = round->kept != nullptr && round->count(ContributionState::kFolded) != 0;
  if (round->all_announced() && !ahead) return;
  const std::string text = (ahead ? AheadText(*round) : StallText(now_, *round)).substr(0, kMostText);
  for (uint32_t index = 0; index < round->contributors(); ++index) {
    const Contribution& contribution = round->of(index);
    if (contribution.state == ContributionState::kAbsent) continue;
    wire::RoundBody body = BodyOf(round->header());
    body.key = contribution.key;
    body.text = static_cast<uint32_t>(text.size());
    endpoint_.Send(WorkerOf(*round, index).peer, wire::RecordType::kStalled, BytesOf(body),
                   std::as_bytes(std::span<const char>(text.data(), text.size())));
  }
}

}  // namespace byteps
