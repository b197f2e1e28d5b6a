// exchange_plan.h - what one rank does in a round: which bytes go where, and what is computed of them, step by step.
//
//     absl::StatusOr<ExchangePlan> plan = MakePlan(announcements, place, groups);
//     Share first = ShareOf(own, ranks, place, to);       // what goes to `to` whatever the others ask
//
// A pure function of the announcements of all: every rank makes its own plan, and the k-th send from a to b in a's plan
// is the k-th receive from a in b's. A step runs when those it waits for are done:
//
//   send     bytes of a buffer to a peer. At most wire::kPeerInline bytes: inside a record; else by a write.
//   receive  the other end of it.
//   fold     the reduction of one run of elements, in rank order.
//   copy     within this rank.
//   spread, merge   rows of a sparse_all_reduce (sparse_rows.h): into a whole tensor; those of all ranks
//   widen, dots, combine, narrow   Adasum (adasum.h): slices in float64, their dot products, the combination of pairs.
//
// Large tensors are cut into chunks, so that what comes in is folded or passed on while more is coming. The ways, with
// M for the bytes of a tensor and n ranks (docs/collectives.md has the bytes on the busiest link):
//
//   all_gather, gather, scatter, all_to_all   directly from owner to receiver
//   reduce_scatter      each rank's slice directly to it, which folds
//   all_reduce, reduce  small: everything to all (to the root). Else a reduce_scatter, whose slices then go to
//                       all (to the root)
//   all_reduce by Adasum   as a large one; each rank has a slice of all inputs, and gives its part of each level's dot
//                       products to all
//   sparse_all_reduce   the rows of each to all, which merge them; where that is more than twice the whole tensor: the
//                       rows become a whole tensor, and that is reduced
//   broadcast           small: from the root to all. Else a slice to each, passed on to all others as it comes
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_EXCHANGE_PLAN_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_EXCHANGE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/worker/collectives/peer_announcement.h"

namespace byteps {

enum class PlanBuffer : uint8_t { kInput, kOutput, kScratch };

struct PlanPlace {
  PlanBuffer buffer = PlanBuffer::kInput;
  uint64_t offset = 0;
};

struct PlanStep {
  enum class Kind : uint8_t { kSend, kReceive, kFold, kCopy, kWiden, kDots, kCombine, kNarrow, kSpread, kMerge };
  Kind kind = Kind::kCopy;
  bool announced = false;  // send, receive: its bytes are in the ANNOUNCE
  uint32_t peer = 0;       // send, receive: its place in the set; combine: how many ranks
  uint32_t transfer = 0;   // send, receive: of all to (from) this peer
  uint32_t waits = 0;      // for so many steps
  uint64_t bytes = 0;
  PlanPlace from;                  // send, copy, widen, narrow; combine: the dots of all ranks
  PlanPlace to;                    // receive, fold, copy, widen, narrow; dots
  std::vector<PlanPlace> sources;  // fold, merge: of each rank, in their order; dots, combine: pair by pair
  std::vector<uint32_t> unlocks;   // steps that wait for this one
};

struct ExchangePlan {
  std::vector<PlanStep> steps;
  uint64_t output_bytes = 0;
  uint64_t scratch_bytes = 0;
  std::vector<int64_t> shape;   // of the output
  std::vector<int64_t> splits;  // rows from (reduce_scatter: for) each rank
  bool gives_output = true;     // this rank gets one
  std::vector<uint64_t> rows;   // sparse_all_reduce: of each rank
  bool dense = false;           // sparse_all_reduce: the output is the whole tensor
};

// Bytes of one rank's input that go to another before anything has come.
struct Share {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
// `ranks`: of the set; `from`, `to`: places in it. Zero bytes: nothing goes.
Share ShareOf(const PeerAnnouncement& own, std::span<const int32_t> ranks, size_t from, size_t to);

// `announcements`: of all, in the order of the set's ranks, which agree (Compare); `own`: this rank's place.
// INVALID_ARGUMENT, the same on all ranks: an output is too small for what it gets.
absl::StatusOr<ExchangePlan> MakePlan(std::span<const PeerAnnouncement> announcements, std::span<const int32_t> ranks,
                                      size_t own);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_EXCHANGE_PLAN_H_
