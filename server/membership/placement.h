// placement.h - how a tensor is cut, and which server lane reduces each part.
//
//     Placement placement({.lanes = {4, 4}, .slot_bytes = 512 << 10});      // two servers with four lanes each
//     absl::StatusOr<Placed> placed = placement.Add(elements, element_bytes, std::nullopt);
//     home = placed->home();                          // of the name: pass it with the name's next variant
//
// A pure function of the options and of what was added before, in that order: a tool that adds the same tensors again
// gets the same answer. It is asked once per tensor, by the coordinator, whose answer holds for all.
//
// The cut. BYTEPS_PARTITION_BYTES, if it is set, bounds a part exactly: as many whole elements as fit. Otherwise parts
// are small enough that a tensor occupies all lanes at once, at least `kLeastFirst` (what is no larger stays whole), at
// most `kLargestPart` (a slot that stays in the cache), and all alike. No part is larger than a landing slot. Where the
// workers of a host reduce among themselves, each has parts of its own to fold: as many as there are workers, of
// `kLeastShare` and more.
//
// The cut again. How fast bytes move is known only when some have moved. A tensor of M bytes on n servers, in parts of
// p, takes longer than its bytes take at rate B by up to 2 n p / B: no server can answer before it has a whole part of
// all workers, and when the last has come all of them still have to get it (half of that where no server has its first
// part later than the others, core/worker/tensor/send_order.h). And by kPartTime for each of its M / p parts. The sum
// is least at p = sqrt(M B kPartTime / 2 n): small parts on a slow link, where the filling is what counts, large ones
// where the processors are the bottleneck; never below `kLeastPart` (below it the cost of a message is larger than that
// of its bytes), but for up to a sixteenth where that gives all lanes as many parts. Lanes do not count here: those of
// one server share its link.
//
// So a row, a part for each server, is what a tensor that is alone pays for filling (one among others up to two): at
// 200 Mbit/s less than 3% of a tensor of 860 KB and more for each server (3.4 MB on four, 14 MB on 16). Of smaller ones
// it is more, since smaller parts are worth no message: 4.8% of 2 MB on four servers, 7.7% of 20 MB on 64. On faster
// links it is as much as the cost of the parts: 3.7% of 20 MB on eight servers at 1 Gbit/s.
//
// Where nothing crosses a network (`at_home`) there is no link to fill, only processors, which have work in any case,
// and each part more is more of it: the first cut stays.
//
// The place. Each part goes to the server that has least to do, in bytes by its weight, and there to the lane that has
// least to do. A part counts as its bytes and `kPartCost`, so that a thousand biases are spread as well. Part 0 of all
// variants of a name goes to the same lane, the name's home, where a disagreement about the shape is seen. With a hash
// in the options (BYTEPS_KEY_HASH_FN) the server of a part is what the hash of its key says, and only the lane is
// chosen by what there is to do.
//
// Threads: none.
#ifndef BYTEPS_SERVER_MEMBERSHIP_PLACEMENT_H_
#define BYTEPS_SERVER_MEMBERSHIP_PLACEMENT_H_

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/membership/key_hash.h"

namespace byteps {

struct PlacementOptions {
  std::vector<uint32_t> lanes;   // of each server, by rank
  std::vector<double> weights;   // share of each server; empty: all alike. 0: it gets nothing
  uint64_t slot_bytes = 0;       // bound of a part
  uint64_t partition_bytes = 0;  // BYTEPS_PARTITION_BYTES; 0: automatic
  uint32_t owners = 1;           // workers of one host that share the parts of a tensor, at most
  bool at_home = false;          // all workers and servers share one network link, which they need not use
  KeyHash hash;                  // none: balanced by bytes
};

struct LanePlace {
  uint32_t server = 0;  // rank
  uint32_t lane = 0;
  bool operator==(const LanePlace&) const = default;
};

// Consecutive parts on one lane.
struct PartRun {
  uint32_t parts = 0;
  LanePlace place;
};

struct Placed {
  uint64_t part_elements = 1;
  std::vector<PartRun> runs;

  LanePlace home() const { return runs.front().place; }
};

class Placement {
 public:
  static constexpr uint64_t kLeastFirst = uint64_t{64} << 10;
  static constexpr uint64_t kLeastPart = uint64_t{24} << 10;
  static constexpr uint64_t kLeastShare = uint64_t{128} << 10;  // a block of BlockFold
  static constexpr uint64_t kLargestPart = uint64_t{512} << 10;
  static constexpr uint64_t kPartCost = 4096;
  static constexpr double kPartTime = 60e-6;  // seconds; of all processors that a part keeps busy
  static constexpr uint64_t kMaxParts = uint64_t{1} << 22;

  explicit Placement(PlacementOptions options);

  // Cuts and places one more tensor, its part 0 at `home` if that is given. `name`: number of its name, from 0, for a
  // hash. RESOURCE_EXHAUSTED: too many parts.
  absl::StatusOr<Placed> Add(uint64_t elements, uint32_t element_bytes, std::optional<LanePlace> home,
                             uint64_t name = 0);

  // Cuts and places a tensor anew, in the place of `old`, now that it is known what its bytes move at (per second). The
  // answer is `old` where little would change, or a size was asked for.
  Placed Recut(const Placed& old, uint64_t elements, uint32_t element_bytes, uint64_t bytes_per_second,
               uint64_t name = 0);

  // May Recut answer with anything new?
  bool adapts() const { return options_.partition_bytes == 0 && total_lanes_ != 0 && !options_.at_home; }

  // What was placed on a server so far, in bytes (without kPartCost).
  uint64_t bytes(uint32_t server) const { return bytes_[server]; }

 private:
  uint64_t PartElements(uint64_t elements, uint32_t element_bytes) const;
  uint64_t BestPartElements(uint64_t elements, uint32_t element_bytes, uint64_t bytes_per_second) const;
  Placed Place(uint64_t elements, uint32_t element_bytes, uint64_t part_elements, std::optional<LanePlace> home,
               uint64_t name);
  LanePlace Choose(uint64_t name, uint64_t part) const;
  void Load(LanePlace place, uint64_t bytes);
  void Unload(LanePlace place, uint64_t bytes);

  PlacementOptions options_;
  uint64_t total_lanes_ = 0;
  std::vector<uint64_t> bytes_;                  // by server
  std::vector<double> loads_;                    // by server: cost by weight
  std::vector<std::vector<uint64_t>> lanes_;     // by server and lane: cost
  std::set<std::pair<double, uint32_t>> order_;  // servers with a weight, least loaded first
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_PLACEMENT_H_
