// cut.h - how a tensor is cut into parts, and which server lane reduces each.
//
//     absl::StatusOr<Cut> cut = Cut::Make(assignment, elements);    // the coordinator's answer, checked
//     for (uint32_t part = 0; part < cut->parts(); ++part) cut->place(part) ...
//
// Threads: immutable.
#ifndef BYTEPS_CORE_WORKER_TENSOR_CUT_H_
#define BYTEPS_CORE_WORKER_TENSOR_CUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"
#include "core/wire/peer_number.h"

namespace byteps {

// The server lane that reduces a partition.
struct Place {
  uint32_t server = 0;  // rank
  uint32_t lane = 0;
  bool operator==(const Place&) const = default;
};

// How a worker's endpoint numbers the server lanes.
constexpr PeerId PeerOf(Place place) { return wire::PeerNumber(place.server, place.lane); }

class Cut {
 public:
  // Checks that the parts of `assignment` cover a tensor of `elements` exactly.
  static absl::StatusOr<Cut> Make(const control::Assignment& assignment, uint64_t elements);

  uint64_t key() const { return key_; }
  // From this round on another cut holds, on all ranks; 0: never.
  uint64_t next_cut() const { return next_cut_; }
  uint32_t parts() const { return static_cast<uint32_t>(places_.size()); }
  Place place(uint32_t part) const { return places_[part]; }
  // Each so many consecutive parts, counted from the first one, lie on as many lanes (the last ones may be fewer); 1:
  // the parts lie otherwise.
  uint32_t row() const { return row_; }
  uint64_t first(uint32_t part) const { return part * part_elements_; }
  uint64_t count(uint32_t part) const;

 private:
  uint64_t key_ = 0;
  uint64_t next_cut_ = 0;
  uint64_t elements_ = 0;
  uint64_t part_elements_ = 1;
  std::vector<Place> places_;
  uint32_t row_ = 1;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_CUT_H_
