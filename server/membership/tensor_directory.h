// tensor_directory.h - the one authority for keys, cuts and places of a session's tensors.
//
//     TensorDirectory directory(placement_options);
//     control::Assignment answer = directory.Declare(spec);     // a refusal is an answer, too: code and error
//
// The first declare of a (process set, name) gives it its name id, the first of a (dtype, shape) of it a variant;
// a member that declares the same gets the same answer. The key is name id << 16 | variant.
//
// Later cuts. Each answer may name a round from which on another cut holds (next_cut: 2, 4, 8, 16 and so on). A worker
// asks for that one before it comes to that round, and does not begin the round without it; rounds are counted alike on
// all ranks, so all change at the same moment, and no member has to agree on anything. The first request causes the cut
// to be made, with the lowest of the rates the workers have told; the others get the same. Only the first variant of a
// name is cut again: who changes the shape all the time counts rounds that this one never sees.
//
// Threads: none.
#ifndef BYTEPS_SERVER_MEMBERSHIP_TENSOR_DIRECTORY_H_
#define BYTEPS_SERVER_MEMBERSHIP_TENSOR_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/control/control.pb.h"
#include "server/membership/placement.h"

namespace byteps {

class TensorDirectory {
 public:
  static constexpr size_t kMaxNames = size_t{1} << 20;
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
  struct Cut {
    uint64_t from_round = 0;
    std::shared_ptr<const Placed> placed;
  };
  struct Variant {
    uint64_t key = 0;
    bool cut_again = false;
    std::vector<Cut> cuts;  // all there were, the last one in force or to come; their number is a logarithm
  };
  using Shape = std::pair<uint32_t, std::vector<int64_t>>;  // dtype, shape
  struct Name {
    uint64_t id = 0;
    int32_t mode = 0;
    std::optional<LanePlace> home;
    std::map<Shape, Variant> variants;
  };

  // Elements of the tensor, or what is wrong with the declaration.
  static absl::StatusOr<uint64_t> Check(const control::TensorSpec& spec);
  absl::Status Assign(const control::TensorSpec& spec, control::Assignment* answer);
  absl::Status Recut(const control::TensorSpec& spec, const Name& name, Variant* variant);
  static const Cut* FindCut(const Variant& variant, uint64_t from_round);
  static void Describe(const control::TensorSpec& spec, const Variant& variant, control::Assignment* answer);

  Placement placement_;
  std::map<std::pair<uint32_t, std::string>, Name> names_;
  uint64_t next_id_ = 1;
  std::map<uint32_t, uint64_t> rates_;  // by rank: bytes per second, as told last
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_TENSOR_DIRECTORY_H_
