// process_set.h - a subset of the ranks of a job, for collectives of its own.
//
//     absl::StatusOr<std::shared_ptr<ProcessSet>> set = ProcessSet::Make("experts", ranks, job_size);
//     std::shared_ptr<ProcessSet> all = ProcessSet::All(job_size);
//     std::optional<size_t> place = set->PlaceOf(rank);
//
// A set is its name and its ranks, in ascending order: ranks that make it of the same ones mean the same set, and none
// has to be asked. The set of all ranks without a name is there always.
//
// Threads: immutable, but for the number of operations in flight, which is atomic.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_PROCESS_SET_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_PROCESS_SET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace byteps {

class ProcessSet {
 public:
  // INVALID_ARGUMENT: no ranks, a rank twice, or one that the job does not have.
  static absl::StatusOr<std::shared_ptr<ProcessSet>> Make(std::string name, std::span<const int32_t> ranks,
                                                          uint32_t job_size);
  static std::shared_ptr<ProcessSet> All(uint32_t job_size);

  const std::string& name() const { return name_; }
  const std::vector<int32_t>& ranks() const { return ranks_; }
  size_t size() const { return ranks_.size(); }
  // All ranks of the job, and no name.
  bool is_all() const { return is_all_; }
  // The same on every rank, for sets of the same name and ranks.
  uint64_t id() const { return id_; }
  // The index of a rank among the set's; nullopt: it is not in it.
  std::optional<size_t> PlaceOf(int64_t rank) const;
  // "all ranks", "ranks 0, 2", "process set \"experts\" (ranks 0, 2)"
  std::string Describe() const;

  // Operations of this rank that use it and have not ended.
  void Enter() { in_flight_.fetch_add(1); }
  void Leave() { in_flight_.fetch_sub(1); }
  int64_t in_flight() const { return in_flight_.load(); }

 private:
  ProcessSet(std::string name, std::vector<int32_t> ranks, bool is_all);

  const std::string name_;
  const std::vector<int32_t> ranks_;
  const bool is_all_;
  const uint64_t id_;
  std::atomic<int64_t> in_flight_{0};
};

// "0, 2, 5"
std::string JoinRanks(std::span<const int32_t> ranks);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_PROCESS_SET_H_
