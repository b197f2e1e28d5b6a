#include "core/worker/collectives/exchange_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"

namespace byteps {
namespace {

constexpr uint64_t kLine = 64;
// Long enough for a write to be cheap, short enough for the second-level cache; and not too many of a huge tensor.
constexpr uint64_t kChunk = uint64_t{256} << 10;
constexpr uint64_t kMostChunks = 256;

uint64_t RoundUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

uint64_t ChunkOf(uint64_t bytes) { return std::max(kChunk, RoundUp((bytes + kMostChunks - 1) / kMostChunks, kLine)); }

// Slice `index` of `count` of so many bytes, at borders of lines.
Share SliceOfBytes(uint64_t bytes, size_t index, size_t count) {
  const uint64_t lines = (bytes + kLine - 1) / kLine;
  const uint64_t first = std::min(bytes, lines * index / count * kLine);
  return {first, std::min(bytes, lines * (index + 1) / count * kLine) - first};
}

// Rows of `index`: by the splits, else as even as possible.
Share RowsOf(const PeerAnnouncement& from, size_t index, size_t count) {
  Share rows;
  if (!from.splits.empty()) {
    for (size_t i = 0; i < index; ++i) rows.offset += static_cast<uint64_t>(from.splits[i]);
    rows.bytes = static_cast<uint64_t>(from.splits[index]);
    return rows;
  }
  const uint64_t each = from.rows() / count, more = from.rows() % count;
  rows.offset = each * index + std::min<uint64_t>(index, more);
  rows.bytes = each + (index < more ? 1 : 0);
  return rows;
}

Share PartOf(const PeerAnnouncement& from, size_t index, size_t count) {
  Share part = RowsOf(from, index, count);
  part.offset *= from.row_bytes();
  part.bytes *= from.row_bytes();
  return part;
}

size_t PlaceOf(std::span<const int32_t> ranks, int32_t rank) {
  return static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

// Of kinds whose root has no slice of its own: which slice a place has.
size_t SliceIndex(size_t place, size_t root) { return place < root ? place : place - 1; }

bool Small(const PeerAnnouncement& from) { return from.bytes() <= wire::kPeerInline; }

class Planner {
 public:
  Planner(std::span<const PeerAnnouncement> all, std::span<const int32_t> ranks, size_t own)
      : all_(all), mine_(all[own]), ranks_(ranks), n_(all.size()), own_(own), sent_(n_), received_(n_) {
    root_ = IsRooted(mine_.kind()) ? PlaceOf(ranks, mine_.body.root) : 0;
  }

  absl::StatusOr<ExchangePlan> Make() {
    for (size_t place = 0; place < n_; ++place) {
      const PeerAnnouncement& each = all_[place];
      const uint64_t needed = OutputBytes(place);
      if ((each.body.flags & wire::kNoCapacity) != 0 || needed <= each.body.capacity) continue;
      return absl::InvalidArgumentError(absl::StrCat("rank ", ranks_[place], " has an output of ", each.body.capacity,
                                                     " bytes; it gets ", needed, " bytes"));
    }
    plan_.output_bytes = OutputBytes(own_);
    SetShape();
    switch (mine_.kind()) {
      case CollectiveKind::kAllReduce:
        AllReduce();
        break;
      case CollectiveKind::kBroadcast:
        Broadcast();
        break;
      case CollectiveKind::kReduceScatter:
        ReduceScatter();
        break;
      case CollectiveKind::kReduce:
        Reduce();
        break;
      case CollectiveKind::kSparseAllReduce:
        SparseAllReduce();
        break;
      case CollectiveKind::kBarrier:
        break;
      default:
        Exchange();
    }
    return std::move(plan_);
  }

 private:
  bool IsRoot() const { return own_ == root_; }

  // The bytes that come from one place to another in kinds without arithmetic.
  uint64_t Coming(size_t from, size_t to) const {
    if (from != to) return ShareOf(all_[from], ranks_, from, to).bytes;
    switch (all_[from].kind()) {
      case CollectiveKind::kAllGather:
        return all_[from].bytes();
      case CollectiveKind::kGather:
        return from == root_ ? all_[from].bytes() : 0;
      case CollectiveKind::kAllToAll:
        return PartOf(all_[from], to, n_).bytes;
      case CollectiveKind::kScatter:
        return from == root_ ? PartOf(all_[from], to, n_).bytes : 0;
      default:
        return 0;
    }
  }

  uint64_t OutputBytes(size_t place) const {
    switch (mine_.kind()) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kBroadcast:
        return mine_.bytes();
      case CollectiveKind::kReduce:
        return place == root_ ? mine_.bytes() : 0;
      case CollectiveKind::kReduceScatter:
        return PartOf(mine_, place, n_).bytes;
      case CollectiveKind::kSparseAllReduce:
        return IsDense() ? WholeBytes() : 0;  // what merging brings is known afterwards
      case CollectiveKind::kBarrier:
        return 0;
      default: {
        uint64_t bytes = 0;
        for (size_t from = 0; from < n_; ++from) bytes += Coming(from, place);
        return bytes;
      }
    }
  }

  void SetShape() {
    const CollectiveKind kind = mine_.kind();
    plan_.shape = mine_.shape;
    if (kind == CollectiveKind::kReduce || kind == CollectiveKind::kGather) plan_.gives_output = IsRoot();
    if (kind == CollectiveKind::kSend || kind == CollectiveKind::kBarrier) plan_.gives_output = false;
    if (!plan_.gives_output) {
      plan_.shape.clear();
      return;
    }
    if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce) {
      return;
    }
    if (kind == CollectiveKind::kSparseAllReduce) {
      plan_.shape[0] = IsDense() ? mine_.all_rows() : 0;
      return;
    }
    if (kind == CollectiveKind::kReceive) {
      plan_.shape = all_[1 - own_].shape;
      return;
    }
    // Rows; of tensors without bytes in a row they cannot be told from the bytes.
    int64_t rows = 0;
    for (size_t place = 0; place < n_; ++place) {
      uint64_t from = 0;
      if (kind == CollectiveKind::kReduceScatter) {
        from = RowsOf(mine_, place, n_).bytes;
        if (place == own_) rows = static_cast<int64_t>(from);
      } else {
        if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGather) from = all_[place].rows();
        if (kind == CollectiveKind::kAllToAll) from = RowsOf(all_[place], own_, n_).bytes;
        if (kind == CollectiveKind::kScatter && place == root_) from = RowsOf(all_[place], own_, n_).bytes;
        rows += static_cast<int64_t>(from);
      }
      plan_.splits.push_back(static_cast<int64_t>(from));
    }
    if (plan_.shape.empty()) plan_.shape.push_back(0);
    plan_.shape[0] = rows;
  }

  // ---- Steps ----

  uint32_t Add(PlanStep step, std::span<const uint32_t> after = {}) {
    const auto id = static_cast<uint32_t>(plan_.steps.size());
    step.waits = static_cast<uint32_t>(after.size());
    plan_.steps.push_back(std::move(step));
    for (const uint32_t each : after) plan_.steps[each].unlocks.push_back(id);
    return id;
  }
  uint32_t Send(size_t to, PlanPlace from, uint64_t bytes, bool announced, std::span<const uint32_t> after = {}) {
    PlanStep step;
    step.kind = PlanStep::Kind::kSend;
    step.announced = announced;
    step.peer = static_cast<uint32_t>(to);
    step.transfer = sent_[to]++;
    step.bytes = bytes;
    step.from = from;
    return Add(std::move(step), after);
  }
  uint32_t Receive(size_t from, PlanPlace to, uint64_t bytes, bool announced) {
    PlanStep step;
    step.kind = PlanStep::Kind::kReceive;
    step.announced = announced;
    step.peer = static_cast<uint32_t>(from);
    step.transfer = received_[from]++;
    step.bytes = bytes;
    step.to = to;
    return Add(std::move(step));
  }
  uint32_t Fold(std::vector<PlanPlace> sources, PlanPlace to, uint64_t bytes, std::span<const uint32_t> after) {
    PlanStep step;
    step.kind = PlanStep::Kind::kFold;
    step.bytes = bytes;
    step.to = to;
    step.sources = std::move(sources);
    return Add(std::move(step), after);
  }
  void Copy(PlanPlace from, PlanPlace to, uint64_t bytes) {
    if (bytes == 0) return;
    PlanStep step;
    step.bytes = bytes;
    step.from = from;
    step.to = to;
    Add(std::move(step));
  }

  // The others, beginning behind this one, so that not all turn to the same.
  template <typename Each>
  void ForOthers(const Each& each) const {
    for (size_t k = 1; k < n_; ++k) each((own_ + k) % n_);
  }

  // Calls each(offset, bytes) for the chunks of so many bytes.
  template <typename Each>
  static void ForChunks(uint64_t bytes, const Each& each) {
    const uint64_t chunk = ChunkOf(bytes);
    for (uint64_t at = 0; at < bytes; at += chunk) each(at, std::min(chunk, bytes - at));
  }

  // What goes to a place (comes from it) before anything else, cut into chunks.
  void SendShare(size_t to) {
    const Share share = ShareOf(mine_, ranks_, own_, to);
    ForChunks(share.bytes, [&](uint64_t at, uint64_t bytes) {
      Send(to, {PlanBuffer::kInput, share.offset + at}, bytes, share.bytes <= wire::kPeerInline);
    });
  }
  std::vector<uint32_t> ReceiveShare(size_t from, PlanPlace to) {
    const Share share = ShareOf(all_[from], ranks_, from, own_);
    std::vector<uint32_t> steps;
    ForChunks(share.bytes, [&](uint64_t at, uint64_t bytes) {
      steps.push_back(Receive(from, {to.buffer, to.offset + at}, bytes, share.bytes <= wire::kPeerInline));
    });
    return steps;
  }

  // ---- Kinds ----

  // All that is no arithmetic: the bytes of all ranks to their places.
  void Exchange() {
    ForOthers([&](size_t to) { SendShare(to); });
    std::vector<uint64_t> offsets(n_);
    uint64_t offset = 0;
    for (size_t from = 0; from < n_; ++from) {
      offsets[from] = offset;
      offset += Coming(from, own_);
    }
    const bool cut = mine_.kind() == CollectiveKind::kAllToAll || mine_.kind() == CollectiveKind::kScatter;
    const uint64_t first = cut ? PartOf(mine_, own_, n_).offset : 0;
    Copy({PlanBuffer::kInput, first}, {PlanBuffer::kOutput, offsets[own_]}, Coming(own_, own_));
    ForOthers([&](size_t from) { ReceiveShare(from, {PlanBuffer::kOutput, offsets[from]}); });
  }

  // The contributions of all to one run of elements come into scratch memory, and are folded into `to`. Returns the
  // folds, chunk by chunk. `own`: where this rank's contribution begins in its input; without: it gives none here.
  std::vector<uint32_t> FoldSlice(uint64_t own_offset, uint64_t bytes, PlanPlace to) {
    std::vector<PlanPlace> bases(n_);
    std::vector<std::vector<uint32_t>> coming(n_);
    for (size_t place = 0; place < n_; ++place) {
      bases[place] = place == own_ ? PlanPlace{PlanBuffer::kInput, own_offset} : Scratch(bytes);
    }
    ForOthers([&](size_t from) { coming[from] = ReceiveShare(from, bases[from]); });
    return FoldChunks(bases, coming, bytes, to);
  }

  // `coming`: of each place, what each chunk waits for; empty: for nothing.
  std::vector<uint32_t> FoldChunks(const std::vector<PlanPlace>& bases,
                                   const std::vector<std::vector<uint32_t>>& coming, uint64_t bytes, PlanPlace to) {
    std::vector<uint32_t> folds;
    size_t chunk = 0;
    ForChunks(bytes, [&](uint64_t at, uint64_t size) {
      std::vector<PlanPlace> sources = bases;
      for (PlanPlace& source : sources) source.offset += at;
      std::vector<uint32_t> after;
      for (size_t from = 0; from < n_; ++from) {
        if (!coming[from].empty()) after.push_back(coming[from][chunk]);
      }
      ++chunk;
      folds.push_back(Fold(std::move(sources), {to.buffer, to.offset + at}, size, after));
    });
    return folds;
  }

  void ReduceScatter() {
    ForOthers([&](size_t to) { SendShare(to); });
    const Share part = PartOf(mine_, own_, n_);
    FoldSlice(part.offset, part.bytes, {PlanBuffer::kOutput, 0});
  }

  // The dot products of a level are those of whole tensors: each rank has a part of them from its slice.
  void Adasum() {
    ForOthers([&](size_t to) { SendShare(to); });
    const Share slice = SliceOfBytes(mine_.bytes(), own_, n_);
    const uint64_t wide_bytes = slice.bytes / DtypeSize(mine_.body.dtype) * sizeof(double);
    const uint64_t room = RoundUp(slice.bytes, kLine), wide_room = RoundUp(wide_bytes, kLine);
    std::vector<PlanPlace> vectors(n_);
    std::vector<uint32_t> before;
    for (size_t place = 0; place < n_; ++place) {
      PlanPlace raw{PlanBuffer::kInput, slice.offset};
      if (place != own_) {
        raw = {PlanBuffer::kScratch, plan_.scratch_bytes};
        plan_.scratch_bytes += room;
      }
      vectors[place] = {PlanBuffer::kScratch, plan_.scratch_bytes};
      plan_.scratch_bytes += wide_room;
      const std::vector<uint32_t> coming = place == own_ ? std::vector<uint32_t>() : ReceiveShare(place, raw);
      before.push_back(Local(PlanStep::Kind::kWiden, raw, vectors[place], slice.bytes, {}, coming));
    }
    const PlanPlace first = vectors[0];
    while (vectors.size() > 1) {
      const std::vector<PlanPlace> pairs(vectors.begin(), vectors.end() - static_cast<ptrdiff_t>(vectors.size() % 2));
      const uint64_t dots_bytes = pairs.size() / 2 * 3 * sizeof(double);
      const PlanPlace dots{PlanBuffer::kScratch, plan_.scratch_bytes};
      plan_.scratch_bytes += RoundUp(dots_bytes * n_, kLine);
      const PlanPlace mine{PlanBuffer::kScratch, dots.offset + own_ * dots_bytes};
      const uint32_t own_dots = Local(PlanStep::Kind::kDots, {}, mine, wide_bytes, pairs, before);
      std::vector<uint32_t> all = {own_dots};
      ForOthers([&](size_t other) {
        Send(other, mine, dots_bytes, false, {&own_dots, 1});
        all.push_back(Receive(other, {PlanBuffer::kScratch, dots.offset + other * dots_bytes}, dots_bytes, false));
      });
      before = {Local(PlanStep::Kind::kCombine, dots, {}, wide_bytes, pairs, all)};
      std::vector<PlanPlace> next;
      for (size_t i = 0; i < vectors.size(); i += 2) next.push_back(vectors[i]);
      vectors = std::move(next);
    }
    const uint32_t narrow =
        Local(PlanStep::Kind::kNarrow, first, {PlanBuffer::kOutput, slice.offset}, slice.bytes, {}, before);
    ForOthers([&](size_t to) {
      ForChunks(slice.bytes, [&](uint64_t at, uint64_t bytes) {
        Send(to, {PlanBuffer::kOutput, slice.offset + at}, bytes, false, {&narrow, 1});
      });
    });
    ForOthers([&](size_t from) { ReceiveSlice(from, mine_.bytes()); });
  }
  uint32_t Local(PlanStep::Kind kind, PlanPlace from, PlanPlace to, uint64_t bytes, std::vector<PlanPlace> sources,
                 std::span<const uint32_t> after) {
    PlanStep step;
    step.kind = kind;
    step.peer = static_cast<uint32_t>(n_);
    step.bytes = bytes;
    step.from = from;
    step.to = to;
    step.sources = std::move(sources);
    return Add(std::move(step), after);
  }
  // Another's slice of the result.
  void ReceiveSlice(size_t from, uint64_t whole) {
    const Share theirs = SliceOfBytes(whole, from, n_);
    ForChunks(theirs.bytes, [&](uint64_t at, uint64_t bytes) {
      Receive(from, {PlanBuffer::kOutput, theirs.offset + at}, bytes, false);
    });
  }

  // Do the rows of all take more than the whole tensor would, there and back?
  bool IsDense() const {
    uint64_t bytes = 0;
    for (const PeerAnnouncement& each : all_) bytes += each.bytes();
    return bytes > 2 * WholeBytes();
  }
  uint64_t WholeBytes() const { return static_cast<uint64_t>(mine_.all_rows()) * mine_.row_bytes(); }

  void SparseAllReduce() {
    for (const PeerAnnouncement& each : all_) plan_.rows.push_back(each.rows());
    plan_.dense = IsDense();
    if (plan_.dense) return SpreadAndReduce();
    ForOthers([&](size_t to) {
      ForChunks(mine_.bytes(), [&](uint64_t at, uint64_t bytes) { Send(to, {PlanBuffer::kInput, at}, bytes, false); });
    });
    std::vector<PlanPlace> sources(n_);
    std::vector<uint32_t> after;
    for (size_t from = 0; from < n_; ++from) {
      if (from == own_) continue;
      sources[from] = Scratch(all_[from].bytes());
      ForChunks(all_[from].bytes(), [&](uint64_t at, uint64_t bytes) {
        after.push_back(Receive(from, {PlanBuffer::kScratch, sources[from].offset + at}, bytes, false));
      });
    }
    Local(PlanStep::Kind::kMerge, {}, {}, 0, std::move(sources), after);
  }

  void SpreadAndReduce() {
    const uint64_t whole = WholeBytes();
    const PlanPlace spread = Scratch(whole);
    const uint32_t ready = Local(PlanStep::Kind::kSpread, {PlanBuffer::kInput, 0}, spread, whole, {}, {});
    ForOthers([&](size_t to) {
      const Share slice = SliceOfBytes(whole, to, n_);
      ForChunks(slice.bytes, [&](uint64_t at, uint64_t bytes) {
        Send(to, {PlanBuffer::kScratch, spread.offset + slice.offset + at}, bytes, false, {&ready, 1});
      });
    });
    const Share slice = SliceOfBytes(whole, own_, n_);
    std::vector<PlanPlace> bases(n_);
    std::vector<std::vector<uint32_t>> coming(n_);
    for (size_t from = 0; from < n_; ++from) {
      if (from == own_) {
        bases[from] = {PlanBuffer::kScratch, spread.offset + slice.offset};
        continue;
      }
      bases[from] = Scratch(slice.bytes);
      ForChunks(slice.bytes, [&](uint64_t at, uint64_t bytes) {
        coming[from].push_back(Receive(from, {PlanBuffer::kScratch, bases[from].offset + at}, bytes, false));
      });
    }
    ForChunks(slice.bytes, [&](uint64_t, uint64_t) { coming[own_].push_back(ready); });
    const std::vector<uint32_t> folds = FoldChunks(bases, coming, slice.bytes, {PlanBuffer::kOutput, slice.offset});
    GiveSlices(whole, slice, folds);
  }

  // The folded slice of each to all.
  void GiveSlices(uint64_t whole, const Share& slice, std::span<const uint32_t> folds) {
    ForOthers([&](size_t to) {
      size_t chunk = 0;
      ForChunks(slice.bytes, [&](uint64_t at, uint64_t bytes) {
        Send(to, {PlanBuffer::kOutput, slice.offset + at}, bytes, false, {&folds[chunk++], 1});
      });
    });
    ForOthers([&](size_t from) { ReceiveSlice(from, whole); });
  }

  PlanPlace Scratch(uint64_t bytes) {
    const PlanPlace place{PlanBuffer::kScratch, plan_.scratch_bytes};
    plan_.scratch_bytes += RoundUp(bytes, kLine);
    return place;
  }

  void AllReduce() {
    if (mine_.body.reduction == BPS_ADASUM) return Adasum();
    ForOthers([&](size_t to) { SendShare(to); });
    if (Small(mine_)) {
      FoldSlice(0, mine_.bytes(), {PlanBuffer::kOutput, 0});
      return;
    }
    const Share slice = SliceOfBytes(mine_.bytes(), own_, n_);
    const std::vector<uint32_t> folds = FoldSlice(slice.offset, slice.bytes, {PlanBuffer::kOutput, slice.offset});
    GiveSlices(mine_.bytes(), slice, folds);
  }

  void Reduce() {
    ForOthers([&](size_t to) { SendShare(to); });
    if (Small(mine_) || n_ == 1) {
      if (IsRoot()) FoldSlice(0, mine_.bytes(), {PlanBuffer::kOutput, 0});
      return;
    }
    if (IsRoot()) {
      ForOthers([&](size_t from) {
        const Share slice = SliceOfBytes(mine_.bytes(), SliceIndex(from, root_), n_ - 1);
        ForChunks(slice.bytes, [&](uint64_t at, uint64_t bytes) {
          Receive(from, {PlanBuffer::kOutput, slice.offset + at}, bytes, false);
        });
      });
      return;
    }
    const Share slice = SliceOfBytes(mine_.bytes(), SliceIndex(own_, root_), n_ - 1);
    const PlanPlace folded = {PlanBuffer::kScratch, plan_.scratch_bytes};
    plan_.scratch_bytes += RoundUp(slice.bytes, kLine);
    const std::vector<uint32_t> folds = FoldSlice(slice.offset, slice.bytes, folded);
    size_t chunk = 0;
    ForChunks(slice.bytes, [&](uint64_t at, uint64_t bytes) {
      Send(root_, {folded.buffer, folded.offset + at}, bytes, false, {&folds[chunk++], 1});
    });
  }

  void Broadcast() {
    const uint64_t whole = mine_.bytes();
    if (IsRoot()) {
      ForOthers([&](size_t to) { SendShare(to); });
      return Copy({PlanBuffer::kInput, 0}, {PlanBuffer::kOutput, 0}, whole);
    }
    const Share mine = ShareOf(all_[root_], ranks_, root_, own_);
    const std::vector<uint32_t> coming = ReceiveShare(root_, {PlanBuffer::kOutput, mine.offset});
    if (Small(mine_)) return;
    ForOthers([&](size_t other) {
      if (other == root_) return;
      size_t chunk = 0;
      ForChunks(mine.bytes, [&](uint64_t at, uint64_t bytes) {
        Send(other, {PlanBuffer::kOutput, mine.offset + at}, bytes, false, {&coming[chunk++], 1});
      });
      const Share theirs = ShareOf(all_[root_], ranks_, root_, other);
      ForChunks(theirs.bytes, [&](uint64_t at, uint64_t bytes) {
        Receive(other, {PlanBuffer::kOutput, theirs.offset + at}, bytes, false);
      });
    });
  }

  const std::span<const PeerAnnouncement> all_;
  const PeerAnnouncement& mine_;
  const std::span<const int32_t> ranks_;
  const size_t n_;
  const size_t own_;
  size_t root_ = 0;
  std::vector<uint32_t> sent_, received_;
  ExchangePlan plan_;
};

}  // namespace

Share ShareOf(const PeerAnnouncement& own, std::span<const int32_t> ranks, size_t from, size_t to) {
  const size_t n = ranks.size();
  const uint64_t whole = own.bytes();
  const auto rooted = [&] { return PlaceOf(ranks, own.body.root); };
  switch (own.kind()) {
    case CollectiveKind::kAllGather:
      return {0, whole};
    case CollectiveKind::kGather:
      return {0, to == rooted() ? whole : 0};
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kReduceScatter:
      return PartOf(own, to, n);
    case CollectiveKind::kScatter:
      return from == rooted() ? PartOf(own, to, n) : Share{};
    case CollectiveKind::kAllReduce:
      return Small(own) && own.body.reduction != BPS_ADASUM ? Share{0, whole} : SliceOfBytes(whole, to, n);
    case CollectiveKind::kReduce:
      if (Small(own)) return {0, to == rooted() ? whole : 0};
      return to == rooted() ? Share{} : SliceOfBytes(whole, SliceIndex(to, rooted()), n - 1);
    case CollectiveKind::kBroadcast:
      if (from != rooted()) return {};
      return Small(own) ? Share{0, whole} : SliceOfBytes(whole, SliceIndex(to, rooted()), n - 1);
    case CollectiveKind::kSend:
      return {0, whole};
    case CollectiveKind::kReceive:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSparseAllReduce:  // only all announcements tell what goes
      return {};
  }
  return {};
}

absl::StatusOr<ExchangePlan> MakePlan(std::span<const PeerAnnouncement> announcements, std::span<const int32_t> ranks,
                                      size_t own) {
  return Planner(announcements, ranks, own).Make();
}

}  // namespace byteps
