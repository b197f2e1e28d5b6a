// absent_part.h - an operation that a rank which has joined is asked to take part in: what is asked of it, and among
// whom.
//
//     AbsentPart part = AbsentPart::Of(asked, own_rank, round);         // a collective among workers
//     part.through_stages = true;                                       // or a push_pull or broadcast of all
//     links.Send(rank, wire::RecordType::kTakePart, part.Encode());
//     absl::StatusOr<AbsentPart> part = AbsentPart::Decode(body);       // on the rank that has joined
//     if (absl::Status why = part->CheckZeros(who); !why.ok()) ...      // zeros would not leave the result as it is
//
// Threads: values.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_ABSENT_PART_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_ABSENT_PART_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/peer_announcement.h"

namespace byteps {

struct AbsentPart {
  // Rounds that were given up before this rank was asked to take part. More are no worker's of this release, and would
  // keep this rank busy for ever.
  static constexpr uint64_t kMostSkipped = uint64_t{1} << 16;

  PeerAnnouncement asked;  // by the rank that tells; body.round counts its own submissions
  std::string set_name;
  std::vector<int32_t> ranks;  // of the set
  Time timeout = 0;
  bool through_stages = false;  // the way of bps_push_pull; body.id has no meaning then

  static AbsentPart Of(const Collective& asked, int32_t own_rank, uint64_t round);
  // Is that rank to take part in it?
  bool Concerns(uint32_t rank) const;
  // Of the rounds of this operation this rank has seen so many. INTERNAL: no worker of this release asks for this one.
  absl::Status CheckGap(uint64_t seen) const;
  // INVALID_ARGUMENT: it breaks the protocol.
  static absl::StatusOr<AbsentPart> Decode(std::span<const std::byte> bytes);
  std::vector<std::byte> Encode() const;

  // FAILED_PRECONDITION: an operation of this kind has no result with zeros, or without bytes, from `who`.
  absl::Status CheckZeros(const std::string& who) const;
  // What the rank that has joined submits, without memory. INVALID_ARGUMENT: the set is none of this job.
  absl::StatusOr<Collective> ToCollective(int32_t own_rank, uint32_t job_size) const;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_ABSENT_PART_H_
