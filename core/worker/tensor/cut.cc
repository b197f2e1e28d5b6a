#include "core/worker/tensor/cut.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

uint32_t RowOf(const std::vector<Place>& places) {
  std::set<PeerId> lanes;
  for (const Place& place : places) lanes.insert(PeerOf(place));
  const size_t row = lanes.size();
  for (size_t first = 0; first < places.size(); first += row) {
    const auto begin = places.begin() + static_cast<ptrdiff_t>(first);
    const auto end = begin + static_cast<ptrdiff_t>(std::min(row, places.size() - first));
    lanes.clear();
    for (auto place = begin; place != end; ++place) {
      if (!lanes.insert(PeerOf(*place)).second) return 1;
    }
  }
  return static_cast<uint32_t>(row);
}

}  // namespace

absl::StatusOr<Cut> Cut::Make(const control::Assignment& assignment, uint64_t elements) {
  // Parts are numbered by 24 bits where they are remembered beside an operation's number (servers/transfers.h).
  constexpr uint64_t kMaxParts = uint64_t{1} << 24;
  Cut cut;
  cut.key_ = assignment.key();
  cut.next_cut_ = assignment.next_cut();
  cut.elements_ = elements;
  cut.part_elements_ = assignment.part_elements();
  if (cut.part_elements_ == 0) return absl::InternalError("the coordinator assigned parts of no elements");
  const uint64_t parts =
      elements == 0 ? 1 : elements / cut.part_elements_ + (elements % cut.part_elements_ != 0 ? 1 : 0);
  if (parts > kMaxParts) {
    return absl::InternalError(absl::StrCat("the coordinator assigned ", parts, " parts; at most ", kMaxParts,
                                            " are possible: raise BYTEPS_PARTITION_BYTES"));
  }
  cut.places_.reserve(parts);
  for (const control::Assignment::Run& run : assignment.runs()) {
    if (run.lane() >= wire::kMaxLanes) {
      return absl::InternalError(absl::StrCat("the coordinator assigned lane ", run.lane(), " of a server"));
    }
    if (run.parts() > parts - cut.places_.size()) {
      return absl::InternalError(absl::StrCat("the coordinator placed more than the ", parts, " parts there are"));
    }
    cut.places_.insert(cut.places_.end(), run.parts(), Place{run.server(), run.lane()});
  }
  if (cut.places_.size() != parts) {
    return absl::InternalError(
        absl::StrCat("the coordinator placed ", cut.places_.size(), " of ", parts, " parts of a tensor"));
  }
  cut.row_ = RowOf(cut.places_);
  return cut;
}

uint64_t Cut::count(uint32_t part) const { return std::min(part_elements_, elements_ - first(part)); }

}  // namespace byteps
