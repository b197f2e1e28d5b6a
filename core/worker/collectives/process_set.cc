#include "core/worker/collectives/process_set.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/stable_hash.h"

namespace byteps {
namespace {

uint64_t IdOf(const std::string& name, const std::vector<int32_t>& ranks) {
  StableHash hash;
  hash.Add(name);
  for (const int32_t rank : ranks) hash.Add(static_cast<uint64_t>(rank));
  return hash.value();
}

}  // namespace

ProcessSet::ProcessSet(std::string name, std::vector<int32_t> ranks, bool is_all)
    : name_(std::move(name)), ranks_(std::move(ranks)), is_all_(is_all), id_(is_all_ ? 0 : IdOf(name_, ranks_)) {}

absl::StatusOr<std::shared_ptr<ProcessSet>> ProcessSet::Make(std::string name, std::span<const int32_t> ranks,
                                                             uint32_t job_size) {
  if (ranks.empty()) return absl::InvalidArgumentError("a process set needs at least one rank");
  std::vector<int32_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  for (const int32_t rank : {sorted.front(), sorted.back()}) {
    if (rank < 0 || static_cast<uint32_t>(rank) >= job_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " of the process set is no rank of this job, which has ", job_size, " workers"));
    }
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", *twice, " is in the process set twice"));
  }
  const bool all = name.empty() && sorted.size() == job_size;
  return std::shared_ptr<ProcessSet>(new ProcessSet(std::move(name), std::move(sorted), all));
}

std::shared_ptr<ProcessSet> ProcessSet::All(uint32_t job_size) {
  std::vector<int32_t> ranks(job_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::shared_ptr<ProcessSet>(new ProcessSet("", std::move(ranks), true));
}

std::optional<size_t> ProcessSet::PlaceOf(int64_t rank) const {
  const auto at = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (at == ranks_.end() || *at != rank) return std::nullopt;
  return static_cast<size_t>(at - ranks_.begin());
}

std::string ProcessSet::Describe() const {
  if (is_all_) return "all ranks";
  const std::string ranks = absl::StrCat(ranks_.size() == 1 ? "rank " : "ranks ", JoinRanks(ranks_));
  return name_.empty() ? ranks : absl::StrCat("process set \"", name_, "\" (", ranks, ")");
}

std::string JoinRanks(std::span<const int32_t> ranks) { return absl::StrJoin(ranks, ", "); }

}  // namespace byteps
