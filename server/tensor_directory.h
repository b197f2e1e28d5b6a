// tensor_directory.h - the one authority for keys, cuts and places of a session's tensors.
//
//     TensorDirectory directory(placement_options);
//     control::Assignment answer = directory.Declare(spec);     // a refusal is an answer, too: code and error
//
// The first declare of a (process set, name) gives it its name id, the first of a (dtype, shape) of it a variant;
// whoever declares the same gets the same answer. The key is name id << 16 | variant.
//
// Later cuts. Each answer may name a round from which on another cut holds (next_cut: 4, 16, 64, 256, then every 1024
// rounds). A worker asks for that one before it comes to that round, and does not begin the round without it; rounds are
// counted alike on all ranks, so all change at the same moment, and nobody has to agree on anything. The first who asks
// causes the cut to be made, with the lowest of the rates the workers have told; the others get the same. Only the first
// variant of a name is cut again: who changes the shape all the time counts rounds that this one never sees.
//
// Threads: none.
#ifndef BYTEPS_SERVER_TENSOR_DIRECTORY_H_
#define BYTEPS_SERVER_TENSOR_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/control.pb.h"
#include "server/placement.h"

namespace byteps {

class TensorDirectory {
 public:
  static constexpr size_t kMaxNames = size_t{1} << 20;
  static constexpr size_t kKeptCuts = 16;
  static constexpr size_t kMaxVariants = size_t{1} << 16;
  static constexpr size_t kMaxNameBytes = 4096;
  static constexpr int kMaxDimensions = 64;
  // No tensor has more bytes: sums of sizes cannot overflow.
  static constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 50;

  explicit TensorDirectory(PlacementOptions options) : placement_(std::move(options)) {}

  // `rank`: who asks.
  control::Assignment Declare(const control::TensorSpec& spec, uint32_t rank = 0);

  size_t names() const { return names_.size(); }

 private:
  using Variant = std::pair<uint32_t, std::vector<int64_t>>;  // dtype, shape
  struct Name {
    uint64_t id = 0;
    std::optional<LanePlace> home;
    std::map<Variant, std::deque<control::Assignment>> variants;  // the latest cuts, the last one in force or to come
  };

  // Elements of the tensor, or what is wrong with the declaration.
  static absl::StatusOr<uint64_t> Check(const control::TensorSpec& spec);
  absl::Status Assign(const control::TensorSpec& spec, control::Assignment* answer);
  absl::Status AssignNext(const control::TensorSpec& spec, Name* name, std::deque<control::Assignment>* cuts,
                          control::Assignment* answer);

  Placement placement_;
  std::map<std::pair<uint32_t, std::string>, Name> names_;
  uint64_t next_id_ = 1;
  std::map<uint32_t, uint64_t> rates_;  // by rank: bytes per second, as told last
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_TENSOR_DIRECTORY_H_
