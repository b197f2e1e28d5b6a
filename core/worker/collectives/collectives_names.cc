// Operations of one name of which some ranks go through stages and some from worker to worker: see collectives.h.
#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "core/worker/collectives/collectives.h"

namespace byteps {
namespace {

// So many rounds that have failed in a row are remembered of a name, for ranks that come to them later.
constexpr size_t kMostFailed = 16;

}  // namespace

absl::Status Collectives::Clash(const PeerAnnouncement& announcement, const Operation& staged) const {
  const std::string other =
      absl::StrCat("rank ", announcement.body.rank, " asks for ", announcement.Terms(false), " from worker to worker");
  const std::string own = absl::StrCat("rank ", own_rank_, " asks for ", DescribeOperation(staged));
  const bool other_first = announcement.body.rank < own_rank_;
  return absl::FailedPreconditionError(absl::StrCat("\"", announcement.name, "\": the ranks do not agree: ",
                                                    other_first ? other : own, "; ", other_first ? own : other));
}

// Has this rank gone through stages in this round? Then its sender must hear that no other rank comes.
bool Collectives::PassedByStages(uint32_t rank, const PeerAnnouncement& announcement, const TensorName& name) {
  const uint64_t id = announcement.body.id, number = announcement.body.round;
  if (number >= name.rounds) return false;
  Operation* staged = name.operation;
  if (staged != nullptr && staged->round == number) {
    const absl::Status why = Clash(announcement, *staged);
    for (uint32_t other = 0; other < job_size_; ++other) {
      if (other == static_cast<uint32_t>(own_rank_)) continue;
      links_.Want(now_, other);
      SendAbort(other, id, number, why, false);
    }
    sink_->OnClash(now_, staged, why);
    return true;
  }
  const auto failed = failed_staged_.find(id);
  if (failed == failed_staged_.end()) return false;
  const auto round = std::find_if(failed->second.begin(), failed->second.end(),
                                  [&](const FailedRound& each) { return each.number == number; });
  if (round == failed->second.end()) return false;
  SendAbort(rank, id, number, round->why, false);
  return true;
}

absl::Status Collectives::BeginStaged(Time now, const Operation& staged) {
  if (rounds_.empty() || stopped_) return absl::OkStatus();
  now_ = now;
  const uint64_t id = Collective::IdOfName(staged.asked.tensor->name().text());
  PeerRound* round = rounds_.Find(id, staged.round);
  if (round == nullptr) return absl::OkStatus();
  absl::Status why = round->failure();
  for (uint32_t rank = 0; why.ok() && rank < job_size_; ++rank) {
    if (!round->heard(static_cast<int32_t>(rank))) continue;
    why = Clash(*round->report(static_cast<int32_t>(rank)).announcement, staged);
    for (uint32_t other = 0; other < job_size_; ++other) {
      if (other == static_cast<uint32_t>(own_rank_)) continue;
      links_.Want(now, other);
      SendAbort(other, id, staged.round, why, false);
    }
  }
  rounds_.Advance(id, staged.round + 1);
  return why;
}

void Collectives::FailStaged(const Operation& staged, const absl::Status& why) {
  if (job_size_ == 1 || stopped_) return;
  const uint64_t id = Collective::IdOfName(staged.asked.tensor->name().text());
  const absl::Status told = absl::IsCancelled(why) ? Told(why) : why;
  std::deque<FailedRound>& rounds = failed_staged_[id];
  if (rounds.size() == kMostFailed) rounds.pop_front();
  rounds.push_back({staged.round, told});
  // Others may have announced a round that this rank gives up when it comes to it, for which there is no BeginStaged.
  const PeerRound* round = rounds_.Find(id, staged.round);
  if (round == nullptr) return;
  for (uint32_t rank = 0; rank < job_size_; ++rank) {
    if (round->heard(static_cast<int32_t>(rank))) SendAbort(rank, id, staged.round, told, false);
  }
  rounds_.Advance(id, staged.round + 1);
}

}  // namespace byteps
