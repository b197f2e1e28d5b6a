// peer_announcement.h - what one rank asks in a round, as it travels.
//
//     PeerAnnouncement own = PeerAnnouncement::Of(asked, rank, round);
//     std::vector<std::byte> record = own.Encode(payload);
//     absl::StatusOr<PeerAnnouncement> theirs = PeerAnnouncement::Decode(body);
//     absl::Status discord = Compare(announcements);            // of all who take part, in the order of their ranks
//
// Threads: values.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_PEER_ANNOUNCEMENT_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_PEER_ANNOUNCEMENT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/peer_records.h"

namespace byteps {

struct PeerAnnouncement {
  wire::AnnounceBody body{};
  std::string name;
  std::vector<int64_t> shape, splits;
  std::vector<std::byte> payload;  // of one that has come

  static PeerAnnouncement Of(const Collective& asked, int32_t rank, uint64_t round);
  // INVALID_ARGUMENT: it breaks the protocol.
  static absl::StatusOr<PeerAnnouncement> Decode(std::span<const std::byte> bytes);
  std::vector<std::byte> Encode(std::span<const std::byte> bytes) const;

  CollectiveKind kind() const { return static_cast<CollectiveKind>(body.kind); }
  uint64_t rows() const { return shape.empty() ? 1 : static_cast<uint64_t>(shape[0]); }
  uint64_t row_bytes() const;
  uint64_t bytes() const;                        // of the input
  int64_t all_rows() const { return body.tag; }  // of sparse_all_reduce
  // As of Collective.
  bool shares_name() const { return body.set == 0 && !IsPairwise(kind()); }
  // What must be equal on all ranks, for people: equal texts are equal requests. `any_rows`: the first dimension may
  // differ, because the receiver takes what comes.
  std::string Terms(bool any_rows) const;
};

// FAILED_PRECONDITION: not all ask the same. The words are the same wherever it is found.
absl::Status Compare(std::span<const PeerAnnouncement> announcements);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_PEER_ANNOUNCEMENT_H_
