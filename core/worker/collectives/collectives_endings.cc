// The ways in which rounds of collectives end: complete, given up here or by another rank, or with all others.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/worker/collectives/collectives.h"

namespace byteps {
namespace {

constexpr size_t kMaxReason = 1024;

std::span<const std::byte> BytesOfText(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace

bool Collectives::Cancel(Time now, const Request* request, const absl::Status& why) {
  now_ = now;
  const auto found = requests_.find(request);
  if (found == requests_.end())
    return (copies_ != nullptr && copies_->Hurry(now, request)) || joins_.Cancel(request, why);
  GiveUp(found->second, why, Told(why));
  return true;
}

void Collectives::CancelAll(Time now, const absl::Status& why) {
  now_ = now;
  for (PeerRound* round : rounds_.Submitted()) GiveUp(round, why, Told(why));
  joins_.CancelAll(why);
}

absl::Status Collectives::Told(const absl::Status& why) const {
  const std::string self = job_size_ == 1 ? "this rank" : links_.description(static_cast<uint32_t>(own_rank_));
  return MakeStatus(absl::IsCancelled(why) ? BPS_ABORTED : StatusCode(why),
                    absl::StrCat(self, " gave up: ", absl::string_view(why.message())));
}

void Collectives::SendAbort(uint32_t rank, uint64_t id, uint64_t number, const absl::Status& why, bool answer) {
  const std::string text(why.message().substr(0, kMaxReason));
  const wire::AbortBody body{
      id, number, own_rank_, StatusCode(why), static_cast<uint32_t>(text.size()), answer ? 1u : 0u};
  links_.Send(rank, wire::RecordType::kAbort, BytesOf(body), BytesOfText(text));
}

// `told`: what the others hear.
void Collectives::GiveUp(PeerRound* round, const absl::Status& why, const absl::Status& told) {
  if (!round->failure().ok()) return;
  order_.erase({~round->asked().priority, round->serial()});
  round->Fail(why, After(now_, options_.release_grace));
  if (round->state() == PeerRoundState::kRefused) return;
  alarms_.emplace(round->release_at(), round->serial());
  for (const int32_t rank : round->ranks()) {
    if (rank != own_rank_) SendAbort(static_cast<uint32_t>(rank), round->id(), round->number(), told, false);
  }
  MaybeLeave(round);
}

void Collectives::OnAbort(uint32_t rank, std::span<const std::byte> body) {
  wire::AbortBody abort;
  if (!ReadStruct(body, &abort) || abort.rank != static_cast<int32_t>(rank) ||
      abort.text > body.size() - sizeof abort) {
    return InvalidRecord(rank, "an invalid ABORT");
  }
  if (abort.answer != 0) {
    PeerRound* round = rounds_.Find(abort.id, abort.round);
    if (round == nullptr) return;
    round->report(static_cast<int32_t>(rank)).released = true;
    return MaybeLeave(round);
  }
  const auto* text = reinterpret_cast<const char*>(body.data()) + sizeof abort;
  const absl::Status why =
      MakeStatus(abort.code == BPS_OK ? BPS_INTERNAL : abort.code, std::string_view(text, abort.text));
  if (Operation* staged = sink_->OnStaged(abort.id, abort.round)) {
    // Servers and neighbours wait for the sender, which would have gone from worker to worker. This rank tells them.
    SendAbort(rank, abort.id, abort.round, why, true);
    return sink_->OnClash(now_, staged, why);
  }
  PeerRound* round = rounds_.FindOrMake(abort.id, abort.round);
  // Over, or not begun: this rank touches no memory for it.
  if (round == nullptr || round->state() == PeerRoundState::kAwaited || round->state() == PeerRoundState::kRefused) {
    SendAbort(rank, abort.id, abort.round, why, true);
    if (round != nullptr && round->failure().ok()) round->Fail(why, kNever);
    return;
  }
  if (round->told_last_word) SendAbort(rank, abort.id, abort.round, why, true);
  // The others may have given up because this rank did not come: why it did not, only this one knows.
  const std::string held = round->held() ? copies_->DescribeWait(round->asked().request.get()) : "";
  GiveUp(round, held.empty() ? why : MakeStatus(StatusCode(why), absl::StrCat(why.message(), "; here ", held)), why);
}

// True end of a round: its memory is not touched any more.
void Collectives::MaybeLeave(PeerRound* round) {
  if (round->finished() && round->writes == 0) {
    round->Deliver();
    return Leave(round, absl::OkStatus());
  }
  if (round->state() != PeerRoundState::kReleasing || round->writes != 0) return;
  if (!round->told_last_word) {
    round->told_last_word = true;
    for (const int32_t rank : round->ranks()) {
      if (rank == own_rank_) continue;
      SendAbort(static_cast<uint32_t>(rank), round->id(), round->number(), round->failure(), true);
    }
  }
  for (const int32_t rank : round->ranks()) {
    const PeerReport& report = round->report(rank);
    if (report.was_shown && !report.released && now_ < round->release_at()) return;
  }
  Leave(round, Retryable(Annotate(round->failure(), round->asked().Describe())));
}

void Collectives::Leave(PeerRound* round, const absl::Status& outcome) {
  for (const uint32_t immediate : round->immediates) links_.ReturnImmediate(immediate);
  order_.erase({~round->asked().priority, round->serial()});
  alarms_.erase({round->deadline(), round->serial()});
  alarms_.erase({round->release_at(), round->serial()});
  const Collective asked = round->asked();
  if (!outcome.ok() && !stopped_ && !joins_.Holds(asked.request.get())) {
    joins_.Remember(AbsentPart::Of(asked, own_rank_, round->number()));
  }
  requests_.erase(asked.request.get());
  rounds_.Erase(round);
  LeavePlace(asked);
  if (asked.gpu != nullptr) return copies_->End(now_, asked, outcome);
  if (!joins_.Drop(asked.request.get())) sink_->OnCollectiveDone(asked.request, outcome);
}

void Collectives::OnPeerLost(uint32_t rank, const absl::Status& why) {
  if (joins_.Needs(rank)) return Fatal(why, links_.member(rank));
  for (const PeerRound* round : rounds_.Submitted()) {
    if (round->asked().set->PlaceOf(rank)) return Fatal(why, links_.member(rank));
  }
}

void Collectives::OnLinksFailed(const absl::Status& why) { Fatal(why, 0); }

void Collectives::Fatal(const absl::Status& why, uint32_t member) {
  if (std::exchange(fatal_, true)) return;
  sink_->OnCollectivesFatal(why, member);
}

void Collectives::Stop(const absl::Status& why) {
  if (std::exchange(stopped_, true)) return;
  stop_cause_ = why;
  // No registration outlives its transport, and no transport touches memory afterwards.
  for (PeerRound* round : rounds_.All()) {
    round->output_region = Region();
    round->scratch_region = Region();
    round->input_region = Region();
  }
  links_.Stop();
  for (PeerRound* round : rounds_.Submitted()) Leave(round, why);
  for (const Collective& asked : std::exchange(given_up_, {})) {
    Withdraw(asked);
    sink_->OnCollectiveDone(asked.request, why);
  }
  if (copies_ != nullptr) copies_->Stop();
  joins_.Stop(why);
  rounds_.Clear();
  alarms_.clear();
}

}  // namespace byteps
