// barrier_book.h - the barriers of one session: who has come, who is missing, and until when.
//
//     BarrierBook book(size, describe);                   // describe(rank): "rank 1 (host b, pid 42)"
//     Send(book.Arrive(now, rank, request));              // replies to be sent: none, or to every member
//     Send(book.Leave(now, rank));                        // this rank will come to no barrier any more
//     Send(book.Tick(now));                               // at NextTimer()
//
// The n-th call of a name on one rank meets the n-th call of that name on all others. A barrier ends when all ranks
// have come, at the earliest deadline of those that have, or as soon as a member that has not come has left; in the
// latter cases every member gets the error that names who is missing, those that come later at once. The next barrier
// of that name is not affected.
//
// Threads: none.
#ifndef BYTEPS_SERVER_MEMBERSHIP_BARRIER_BOOK_H_
#define BYTEPS_SERVER_MEMBERSHIP_BARRIER_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"

namespace byteps {

struct BarrierAnswer {
  uint32_t rank = 0;
  control::BarrierReply reply;
};

class BarrierBook {
 public:
  // Barriers that are open or remembered as failed; more are refused, or the oldest forgotten.
  static constexpr size_t kMaxOpen = 65536;
  static constexpr size_t kMaxNameBytes = 1024;

  BarrierBook(uint32_t size, std::function<std::string(uint32_t)> describe)
      : size_(size), describe_(std::move(describe)) {}

  std::vector<BarrierAnswer> Arrive(Time now, uint32_t rank, const control::BarrierRequest& request);
  std::vector<BarrierAnswer> Leave(uint32_t rank);
  std::vector<BarrierAnswer> Tick(Time now);
  Time NextTimer() const;

  size_t open() const { return barriers_.size(); }

 private:
  using Key = std::pair<std::string, uint64_t>;
  struct Barrier {
    std::set<uint32_t> arrived;
    Time deadline = kNever;
    uint32_t impatient = 0;  // whose deadline that is
    int64_t timeout_ms = 0;
    absl::Status failed;  // not OK: it has, and is kept for those that come later
  };

  static BarrierAnswer Answer(uint32_t rank, const Key& key, const absl::Status& status);
  std::string Missing(const Barrier& barrier) const;
  void Fail(const Key& key, Barrier* barrier, const absl::Status& why, std::vector<BarrierAnswer>* answers);
  bool Finished(const Barrier& barrier) const;

  const uint32_t size_;
  const std::function<std::string(uint32_t)> describe_;
  std::map<Key, Barrier> barriers_;
  std::set<uint32_t> left_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_BARRIER_BOOK_H_
