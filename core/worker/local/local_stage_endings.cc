// The ways in which a round of the local stage ends: in order, given up by a member, or stopped.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/byte_buffer.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/worker/local/local_stage.h"

namespace byteps {
namespace {

constexpr size_t kMaxReason = 1024;

std::span<const std::byte> BytesOfText(absl::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace

void LocalStage::OnEnd(size_t index, wire::RecordType type, std::span<const std::byte> body) {
  wire::RoundBody end;
  if (!ReadStruct(body, &end) || end.text > body.size() - sizeof end || end.rank != neighbours_->rank(index)) {
    return ProtocolError(index, "an invalid end record");
  }
  LocalRound* round = rounds_.FindOrMake(end.key, end.round, neighbours_->size());
  if (round == nullptr) return;
  LocalReport& report = round->reports[index];
  report.ended = true;
  const std::span<const std::byte> rest = body.subspan(sizeof end, end.text);
  if (type == wire::RecordType::kGiveUp) {
    const size_t size = std::min<size_t>(rest.size(), kMaxReason);
    const std::string_view text(reinterpret_cast<const char*>(rest.data()), size);
    const absl::Status why = MakeStatus(end.code == BPS_OK ? BPS_INTERNAL : end.code, text);
    if (round->failure.ok()) return GiveUp(round, why, why, Cause::kNeighbour);
  } else if (next_ != nullptr && round->failure.ok()) {
    if (rest.size() > inline_bytes_) return ProtocolError(index, "a result that is no small tensor's");
    if (!rest.empty()) report.payload.Assign(rest);
    const bool awaited = round->state() == LocalState::kWorking && role_->Small(*round);
    if (awaited && index == role_->Leader(*round->operation)) {
      if (CopyFrom(round, index)) Leave(round);
      return;
    }
  }
  MaybeLeave(round);
}

void LocalStage::Withdraw(Time now, Operation* operation, const absl::Status& why) {
  if (operation->by_gpus) return next_->Withdraw(now, operation, why);
  Abort(now, operation, why);
}

void LocalStage::Abort(Time now, Operation* operation, const absl::Status& why) {
  if (operation->by_gpus) return next_->Abort(now, operation, why);
  now_ = now;
  if (rounds_.FindOf(*operation) == nullptr) Begin(now, operation, Areas(), {0, PartCount(*operation)});
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr || !round->failure.ok()) return;
  GiveUp(round, why, ReasonForOthers(why), Cause::kHere);
}

void LocalStage::EndRound(Time now, uint64_t name_id, uint64_t number, const absl::Status& why) {
  if (stopped_) return;
  now_ = now;
  LocalRound* round = rounds_.FindOrMake(name_id << 16, number, neighbours_->size());
  if (round != nullptr) GiveUp(round, why, why, Cause::kNeighbour);
}

// What the others are told of a failure here.
absl::Status LocalStage::ReasonForOthers(const absl::Status& why) const {
  return MakeStatus(
      absl::IsCancelled(why) ? BPS_ABORTED : StatusCode(why),
      absl::StrCat(neighbours_->description(neighbours_->own()), " gave up: ", absl::string_view(why.message())));
}

// `told`: what the others are told.
void LocalStage::GiveUp(LocalRound* round, const absl::Status& why, const absl::Status& told, Cause cause) {
  if (!round->failure.ok()) return;
  round->failure = why;
  work_.Withdraw(now_, round);
  Unlist(round);
  LocalReport& own = round->reports[neighbours_->own()];
  if (!own.ended) {
    own.ended = true;
    SendEnd(*round, wire::RecordType::kGiveUp, StatusCode(told), BytesOfText(told.message().substr(0, kMaxReason)));
  }
  if (round->operation == nullptr) return round->Move(LocalState::kRefused);
  Operation* operation = round->operation;
  round->Move(LocalState::kReleasing);
  round->release_at = After(now_, options_.release_grace);
  releasing_.push_back(round);
  sink_->OnGivingUp(operation, why, cause != Cause::kHere);
  // The next stage, if it has the operation or has to tell the servers, says when it is through: OnStageDone.
  if (next_ != nullptr && cause == Cause::kHere) {
    round->beyond = true;
    return next_->Abort(now_, operation, why);
  }
  if (!round->beyond) return MaybeLeave(round);
  if (cause == Cause::kNeighbour) next_->Withdraw(now_, operation, why);
}

void LocalStage::Unlist(LocalRound* round) {
  std::erase(ready_, round);
  std::erase(reaching_, round);
  std::erase(failing_, round);
}

void LocalStage::MaybeLeave(LocalRound* round) {
  const bool over = round->state() == LocalState::kFinishing   ? round->AllEnded()
                    : round->state() == LocalState::kReleasing ? !round->shown || round->AllEnded()
                                                               : false;
  // With a piece under way it leaves by itself, at the last one.
  if (!over || round->beyond || round->task != 0) return;
  const bool finishing = round->state() == LocalState::kFinishing;
  finishing && memory_->ListToTake(round) ? NextPiece(round) : Leave(round);
}

// The operation's memory is not touched any more. Forgets the round.
void LocalStage::Leave(LocalRound* round) {
  Operation* operation = round->operation;
  const absl::Status outcome =
      round->failure.ok() ? round->failure : Retryable(Annotate(round->failure, DescribeOperation(*operation)));
  if (!stopped_) memory_->Finish(round, outcome.ok());
  const Payload target = round->areas.target;
  Drop(operation);
  if (outcome.ok()) {
    const Cut& cut = *operation->asked.tensor->cut;
    for (uint32_t part = 0; part < cut.parts(); ++part) sink_->OnPartHome(operation, part, PartOf(target, cut, part));
  }
  sink_->OnStageDone(operation, outcome);
}

void LocalStage::Drop(Operation* operation) {
  if (operation->by_gpus) return next_ == nullptr ? void() : next_->Drop(operation);
  LocalRound* round = rounds_.FindOf(*operation);
  if (round == nullptr) return;
  if (!stopped_) {
    work_.Withdraw(now_, round);
    memory_->LetGo(round);
  }
  if (round->beyond) next_->Drop(operation);
  std::erase(releasing_, round);
  Unlist(round);
  rounds_.Forget(round->name_id(), round->number());
  --in_flight_;
}

void LocalStage::Stop() {
  if (stopped_) return;
  stopped_ = true;
  work_.Halt();
  rounds_.ForEach([](LocalRound* round) {
    round->input = Region();
    round->output = Region();
    round->staging = Staging();
  });
  offers_.reset();
  memory_.reset();
  neighbours_->Stop();
  endpoint_.reset();
}

void LocalStage::DropFreedBuffers() {
  if (memory_ != nullptr) memory_->DropFreedBuffers();
}

}  // namespace byteps
