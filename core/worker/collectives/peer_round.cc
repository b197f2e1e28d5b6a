#include "core/worker/collectives/peer_round.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/reduce/dtype.h"
#include "core/reduce/reduce.h"
#include "core/worker/collectives/adasum.h"
#include "core/worker/collectives/scale.h"

namespace byteps {

void PeerRound::Start(Collective asked, int32_t own_rank, Time now) {
  asked_ = std::move(asked);
  place_ = *asked_.set->PlaceOf(own_rank);
  own_rank_ = own_rank;
  deadline_ = After(now, asked_.timeout);
  if (state_ == PeerRoundState::kRefused) return;
  state_ = PeerRoundState::kGathering;
  held_ = asked_.gpu != nullptr;
  if (!held_ && asked_.given_up.ok()) Release(asked_.input);
}

void PeerRound::Release(const std::byte* input) {
  held_ = false;
  asked_.input = input;
  if (asked_.scaled && asked_.prescale != 1 && asked_.bytes() != 0) {
    scaled_ = AlignedMemory(asked_.bytes());
    Scale(asked_.dtype, asked_.prescale, asked_.input, scaled_.data(), asked_.elements());
  }
  reports_[own_rank_].announcement = PeerAnnouncement::Of(asked_, own_rank_, number_);
}

bool PeerRound::AllAnnounced() const {
  return std::all_of(ranks().begin(), ranks().end(), [&](int32_t rank) { return heard(rank); });
}

std::vector<PeerAnnouncement> PeerRound::Announcements() const {
  std::vector<PeerAnnouncement> all;
  for (const int32_t rank : ranks()) all.push_back(*reports_.at(rank).announcement);
  return all;
}

void PeerRound::Begin(ExchangePlan plan, std::vector<uint32_t> groups) {
  state_ = PeerRoundState::kMoving;
  plan_ = std::move(plan);
  groups_ = std::move(groups);
  CollectiveResult& result = *asked_.result;
  if (asked_.output == nullptr && plan_.output_bytes != 0) result.memory = AlignedMemory(plan_.output_bytes);
  result.data = asked_.output != nullptr ? asked_.output : result.memory.data();
  if (plan_.scratch_bytes != 0) scratch_ = AlignedMemory(plan_.scratch_bytes);

  const size_t members = ranks().size();
  receives_.resize(members);
  sends_.resize(members);
  left_ = plan_.steps.size();
  done_.assign(left_, false);
  waits_.resize(left_);
  for (uint32_t step = 0; step < plan_.steps.size(); ++step) {
    const PlanStep& each = plan_.steps[step];
    waits_[step] = each.waits;
    if (each.kind == PlanStep::Kind::kReceive) receives_[each.peer].push_back(step);
  }
  for (uint32_t step = 0; step < plan_.steps.size(); ++step) {
    if (plan_.steps[step].waits == 0) Unlock(step);
  }
}

void PeerRound::Unlock(uint32_t step) {
  const PlanStep& each = plan_.steps[step];
  if (each.kind == PlanStep::Kind::kSend) sends_[each.peer].push_back(step);
  if (each.kind != PlanStep::Kind::kSend && each.kind != PlanStep::Kind::kReceive) computable_.push_back(step);
}

std::optional<uint32_t> PeerRound::ReceiveOf(size_t place, uint32_t transfer) const {
  if (place >= receives_.size() || transfer >= receives_[place].size()) return std::nullopt;
  return receives_[place][transfer];
}

std::byte* PeerRound::Address(const PlanPlace& at) const {
  switch (at.buffer) {
    case PlanBuffer::kInput:
      return const_cast<std::byte*>(input()) + at.offset;
    case PlanBuffer::kOutput:
      return asked_.result->data + at.offset;
    case PlanBuffer::kScratch:
      return scratch_.data() + at.offset;
  }
  return nullptr;
}

void PeerRound::Finish(uint32_t step) {
  if (done_[step]) return;
  done_[step] = true;
  --left_;
  for (const uint32_t next : plan_.steps[step].unlocks) {
    if (--waits_[next] == 0) Unlock(next);
  }
}

bool PeerRound::Compute() {
  if (computable_.empty()) return false;
  const uint32_t step = computable_.front();
  computable_.pop_front();
  const PlanStep& each = plan_.steps[step];
  const size_t elements = each.bytes / DtypeSize(asked_.dtype);
  switch (each.kind) {
    case PlanStep::Kind::kFold:
      Fold(each);
      break;
    case PlanStep::Kind::kWiden:
      adasum::Widen(asked_.dtype, Address(each.from), Wide(each.to), elements);
      break;
    case PlanStep::Kind::kDots:
      TakeDots(each);
      break;
    case PlanStep::Kind::kCombine:
      Combine(each);
      break;
    case PlanStep::Kind::kSpread:
      Spread({Address(each.from), asked_.rows()}, asked_.row_bytes(), static_cast<uint64_t>(asked_.all_rows),
             Address(each.to));
      break;
    case PlanStep::Kind::kMerge:
      MergeRows(each);
      break;
    case PlanStep::Kind::kNarrow:
      adasum::Narrow(asked_.dtype, Wide(each.from), Address(each.to), elements);
      break;
    default:
      if (Address(each.to) != Address(each.from)) std::memcpy(Address(each.to), Address(each.from), each.bytes);
  }
  Finish(step);
  return true;
}

void PeerRound::Fold(const PlanStep& step) {
  sources_.clear();
  for (const PlanPlace& source : step.sources) sources_.push_back(Address(source));
  Reduce({asked_.dtype, asked_.reduction}, sources_, groups_, Address(step.to), step.bytes / DtypeSize(asked_.dtype));
}

// The result is what there is of rows: memory of the library's.
void PeerRound::MergeRows(const PlanStep& step) {
  std::vector<SparsePart> parts;
  for (size_t place = 0; place < step.sources.size(); ++place) {
    const std::byte* packed = place == place_ ? asked_.input : Address(step.sources[place]);
    parts.push_back({packed, plan_.rows[place]});
  }
  SparseRows merged = Merge({asked_.dtype, asked_.reduction}, groups_, parts, asked_.row_bytes());
  CollectiveResult& result = *asked_.result;
  SparseIndices& indices = *asked_.indices;
  indices.count = static_cast<int64_t>(merged.count);
  indices.data = reinterpret_cast<int64_t*>(merged.memory.data());
  plan_.shape[0] = indices.count;
  plan_.output_bytes = merged.count * asked_.row_bytes();
  if (merged.count != 0) result.data = merged.memory.data() + SparseValuesAt(merged.count);
  result.memory = std::move(merged.memory);
}

void PeerRound::TakeDots(const PlanStep& step) {
  std::byte* to = Address(step.to);
  for (size_t i = 0; i < step.sources.size(); i += 2, to += sizeof(adasum::Dots)) {
    const adasum::Dots dots =
        adasum::PartialDots(Wide(step.sources[i]), Wide(step.sources[i + 1]), step.bytes / sizeof(double));
    std::memcpy(to, &dots, sizeof dots);
  }
}

// The parts of the dot products are added in the order of the ranks.
void PeerRound::Combine(const PlanStep& step) {
  const size_t pairs = step.sources.size() / 2;
  for (size_t pair = 0; pair < pairs; ++pair) {
    adasum::Dots total;
    for (uint32_t rank = 0; rank < step.peer; ++rank) {
      adasum::Dots part;
      std::memcpy(&part, Address(step.from) + (rank * pairs + pair) * sizeof part, sizeof part);
      total.aa += part.aa;
      total.bb += part.bb;
      total.ab += part.ab;
    }
    adasum::Combine(total, Wide(step.sources[2 * pair]), Wide(step.sources[2 * pair + 1]), step.bytes / sizeof(double));
  }
}

void PeerRound::Deliver() {
  CollectiveResult& result = *asked_.result;
  result.bytes = plan_.output_bytes;
  result.shape = plan_.shape;
  result.splits = plan_.splits;
  if (asked_.indices != nullptr) asked_.indices->dense = plan_.dense;
  if (asked_.scaled && asked_.postscale != 1 && result.bytes != 0) {
    Scale(asked_.dtype, asked_.postscale, result.data, result.data, result.bytes / DtypeSize(asked_.dtype));
  }
}

void PeerRound::Fail(const absl::Status& why, Time release_at) {
  failure_ = why;
  release_at_ = release_at;
  state_ = state_ == PeerRoundState::kAwaited ? PeerRoundState::kRefused : PeerRoundState::kReleasing;
  computable_.clear();
  for (std::deque<uint32_t>& sends : sends_) sends.clear();
}

std::vector<int32_t> PeerRound::Missing() const {
  std::vector<int32_t> missing;
  for (size_t place = 0; place < ranks().size(); ++place) {
    const int32_t rank = ranks()[place];
    bool lacks = !heard(rank);
    if (!lacks && state_ == PeerRoundState::kMoving) {
      for (uint32_t step = 0; step < plan_.steps.size() && !lacks; ++step) {
        const PlanStep& each = plan_.steps[step];
        lacks = !done_[step] && each.peer == place && place != place_ &&
                (each.kind == PlanStep::Kind::kReceive || each.kind == PlanStep::Kind::kSend);
      }
    }
    if (lacks) missing.push_back(rank);
  }
  return missing;
}

}  // namespace byteps
