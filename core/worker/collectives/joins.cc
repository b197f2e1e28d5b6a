#include "core/worker/collectives/joins.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/worker/collectives/peer_records.h"

namespace byteps {
namespace {

// Says who has joined last.
constexpr uint32_t kArbiter = 0;

}  // namespace

void Joins::Start(uint32_t job_size, int32_t own_rank) {
  own_rank_ = static_cast<uint32_t>(own_rank);
  joins_.assign(job_size, 0);
  seen_.assign(job_size, 0);
}

absl::Status Joins::Admit() {
  if (waited_for_.exchange(true)) {
    return Retryable(absl::AlreadyExistsError("join: another caller of this rank waits for it"));
  }
  joined_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

void Joins::Withdraw() {
  joined_.store(false, std::memory_order_release);
  waited_for_.store(false);
}

absl::Status Joins::CheckMaySubmit() const {
  if (!joined()) return absl::OkStatus();
  return Retryable(absl::FailedPreconditionError(
      "this rank has joined: it counts as zeros, and submits nothing until all ranks have joined"));
}

absl::Status Joins::CheckAllPresent() const {
  if (absent_.empty()) return absl::OkStatus();
  return Retryable(absl::FailedPreconditionError(absl::StrCat(
      links_->description(absent_.front()), " has joined: it comes to nothing until all ranks have joined")));
}

void Joins::Submit(Time now, JoinAsked asked) {
  asked_ = std::move(asked);
  asked_.request->Advance(RequestState::kActive);
  heard_ = now;
  to_tell_ = !told_;
  TellJoined(now);
  MaybeEnd(now);
}

// False: it is told, or not yet to be.
bool Joins::TellJoined(Time now) {
  if (!to_tell_ || handler_->WaitsToGiveUp()) return false;
  to_tell_ = false;
  told_ = true;
  const auto known = come_.find(ended_ + 1);
  const wire::JoinBody body{ended_ + 1, known == come_.end() ? 1 : known->second.place + 1};
  for (uint32_t rank = 0; rank < joins_.size(); ++rank) {
    if (rank == own_rank_) continue;
    links_->Want(now, rank);
    links_->Send(rank, wire::RecordType::kJoined, BytesOf(body));
  }
  OnJoined(now, own_rank_, body);
  return true;
}

bool Joins::Cancel(const Request* request, const absl::Status& why) {
  if (asked_.request.get() != request || request == nullptr) return false;
  End(why);
  return true;
}

void Joins::CancelAll(const absl::Status& why) {
  if (waits()) End(why);
}

void Joins::Tell(Time now, uint32_t rank, const AbsentPart& part) {
  links_->Want(now, rank);
  links_->Send(rank, wire::RecordType::kTakePart, part.Encode());
}

void Joins::Remember(AbsentPart part) {
  if (joins_.size() < 2) return;
  AbsentPart& latest = failed_[part.asked.body.id];
  if (latest.ranks.empty() || latest.asked.body.round < part.asked.body.round) latest = std::move(part);
}

std::byte* Joins::Hold(const Request* request, uint64_t bytes) {
  AlignedMemory& memory = held_[request];
  memory = AlignedMemory(bytes);  // zeros
  return memory.data();
}

bool Joins::OnRecord(Time now, uint32_t rank, wire::RecordType type, std::span<const std::byte> body) {
  if (type == wire::RecordType::kTakePart) {
    absl::StatusOr<AbsentPart> part = AbsentPart::Decode(body);
    if (!part.ok()) return false;
    heard_ = now;
    waiting_.push_back(*std::move(part));
    return true;
  }
  wire::JoinBody join;
  if (!ReadStruct(body, &join)) return false;
  switch (type) {
    case wire::RecordType::kJoined:
      return OnJoined(now, rank, join);
    case wire::RecordType::kSeen:
      seen_[rank] = std::max(seen_[rank], join.number);
      break;
    case wire::RecordType::kAllJoined:
      if (join.last < 0 || static_cast<size_t>(join.last) >= joins_.size()) return false;
      last_[join.number] = join.last;
      break;
    default:
      return false;
  }
  MaybeEnd(now);
  return true;
}

bool Joins::OnJoined(Time now, uint32_t rank, const wire::JoinBody& join) {
  const uint64_t number = join.number;
  // It cannot have ended this join before this rank has come to it.
  if (number != joins_[rank] + 1 || number > ended_ + 2) return false;
  joins_[rank] = number;
  NoteArrival(now, rank, join);
  if (rank != own_rank_ && number == ended_ + 1) Absent(now, rank);
  MaybeEnd(now);
  return true;
}

void Joins::Absent(Time now, uint32_t rank) {
  absent_.push_back(rank);
  handler_->OnAbsent(now, rank);
  for (const auto& [id, part] : failed_) {
    if (part.Concerns(rank)) Tell(now, rank, part);
  }
  links_->Want(now, rank);
  links_->Send(rank, wire::RecordType::kSeen, BytesOf(wire::JoinBody{joins_[rank], 0}));
}

void Joins::NoteArrival(Time now, uint32_t rank, const wire::JoinBody& join) {
  const uint64_t number = join.number;
  Come& come = come_[number];
  if (join.last >= come.place) {
    come.place = join.last;
    come.last = rank;
  }
  if (++come.ranks != joins_.size()) return;
  const auto last = static_cast<int32_t>(come.last);
  come_.erase(number);
  if (own_rank_ != kArbiter) return;
  last_[number] = last;
  for (uint32_t other = 0; other < joins_.size(); ++other) {
    if (other == own_rank_) continue;
    links_->Want(now, other);
    links_->Send(other, wire::RecordType::kAllJoined, BytesOf(wire::JoinBody{number, last}));
  }
}

void Joins::MaybeEnd(Time now) {
  if (!waits() || !held_.empty() || !waiting_.empty()) return;
  const uint64_t number = ended_ + 1;
  const auto last = last_.find(number);
  if (last == last_.end()) return;
  for (uint32_t rank = 0; rank < joins_.size(); ++rank) {
    if (rank != own_rank_ && (joins_[rank] < number || seen_[rank] < number)) return;
  }
  ended_ = number;
  told_ = false;
  absent_.clear();
  failed_.clear();
  if (asked_.last_rank != nullptr) *asked_.last_rank = last->second;
  last_.erase(last);
  joined_.store(false, std::memory_order_release);
  End(absl::OkStatus());
  for (uint32_t rank = 0; rank < joins_.size(); ++rank) {
    if (rank != own_rank_ && joins_[rank] > ended_) Absent(now, rank);
  }
}

void Joins::End(const absl::Status& outcome) {
  const std::shared_ptr<Request> request = std::exchange(asked_, {}).request;
  waited_for_.store(false);
  handler_->OnJoinDone(request, outcome);
}

bool Joins::Needs(uint32_t rank) const { return (to_tell_ || told_) && rank != own_rank_; }

std::string Joins::Missing() const {
  if (to_tell_) return "rounds that this rank has given up wait for the end of its operations in flight";
  std::string text;
  for (uint32_t rank = 0; rank < joins_.size(); ++rank) {
    if (rank == own_rank_ || joins_[rank] > ended_) continue;
    absl::StrAppend(&text, text.empty() ? "not joined by " : ", ", links_->description(rank));
  }
  if (!text.empty()) return text;
  return held_.empty() && waiting_.empty() ? "all have joined; their final records have not come"
                                           : "all have joined; operations that this rank takes part in have not ended";
}

std::string Joins::DescribeWait(const Request* request) const {
  if (!waits() || asked_.request.get() != request) return "";
  return absl::StrCat("join: ", Missing());
}

bool Joins::Run(Time now) {
  bool worked = TellJoined(now);
  for (size_t left = waiting_.size(); left > 0; --left) {
    AbsentPart part = std::move(waiting_.front());
    waiting_.pop_front();
    if (handler_->OnTakePart(now, part)) {
      worked = true;
    } else {
      waiting_.push_back(std::move(part));
    }
  }
  if (!waits()) return worked;
  MaybeEnd(now);
  if (waits() && now >= After(heard_, asked_.timeout)) {
    const double seconds = static_cast<double>(asked_.timeout) / 1e9;
    End(Retryable(absl::DeadlineExceededError(absl::StrCat("join: no rank has submitted an operation within ", seconds,
                                                           " s, and not all ranks have joined: ", Missing(),
                                                           ". This rank stays joined: join again to wait on"))));
  }
  return worked;
}

Time Joins::NextTimer() const { return waits() ? After(heard_, asked_.timeout) : kNever; }

void Joins::Stop(const absl::Status& why) {
  waiting_.clear();
  CancelAll(why);
}

}  // namespace byteps
