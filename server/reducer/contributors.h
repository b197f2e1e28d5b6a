// contributors.h - who gives to the rounds of a session: every worker by itself, or the workers of a host as one.
//
//     absl::StatusOr<Contributors> contributors = Contributors::Make(epoch);
//     contributors->of(rank)                     // the number of the contributor that this worker speaks for
//
// Where the workers of a host reduce among themselves first (Epoch.local_sizes), each part of a tensor comes from one
// of them, as the fold of all, and its result goes back to that one: which of them it is, they settle among themselves.
// The result is the same to the bit as if all had pushed, since these sets are the groups of the reduction.
//
// Threads: immutable.
#ifndef BYTEPS_SERVER_REDUCER_CONTRIBUTORS_H_
#define BYTEPS_SERVER_REDUCER_CONTRIBUTORS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/control/control.pb.h"

namespace byteps {

class Contributors {
 public:
  // Every worker by itself, folded in these groups (empty: one level).
  explicit Contributors(uint32_t workers, std::vector<uint32_t> groups = {});
  // INTERNAL: the numbers of the epoch do not fit together.
  static absl::StatusOr<Contributors> Make(const control::Epoch& epoch);

  uint32_t count() const { return static_cast<uint32_t>(first_.size() - 1); }
  uint32_t of(uint32_t rank) const { return of_[rank]; }
  // The ranks that a contributor speaks for: [first(index), last(index)).
  uint32_t first(uint32_t index) const { return first_[index]; }
  uint32_t last(uint32_t index) const { return first_[index + 1]; }
  // Do some speak for several workers?
  bool joint() const { return joint_; }

  uint32_t workers() const { return static_cast<uint32_t>(of_.size()); }
  // The groups in which contributions are folded; empty: one level.
  std::span<const uint32_t> groups() const { return groups_; }

 private:
  void Add(uint32_t workers);

  std::vector<uint32_t> of_;           // by rank
  std::vector<uint32_t> first_ = {0};  // by contributor, and one more
  std::vector<uint32_t> groups_;
  bool joint_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_CONTRIBUTORS_H_
