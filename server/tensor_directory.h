// tensor_directory.h - the one authority for keys, cuts and places of a session's tensors.
//
//     TensorDirectory directory(placement_options);
//     control::Assignment answer = directory.Declare(spec);     // a refusal is an answer, too: code and error
//
// The first declare of a (process set, name) gives it its name id, the first of a (dtype, shape) of it a variant;
// whoever declares the same gets the same answer. The key is name id << 16 | variant.
//
// Threads: none.
#ifndef BYTEPS_SERVER_TENSOR_DIRECTORY_H_
#define BYTEPS_SERVER_TENSOR_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
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
  static constexpr size_t kMaxVariants = size_t{1} << 16;
  static constexpr size_t kMaxNameBytes = 4096;
  static constexpr int kMaxDimensions = 64;
  // No tensor has more bytes: sums of sizes cannot overflow.
  static constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 50;

  explicit TensorDirectory(PlacementOptions options) : placement_(std::move(options)) {}

  control::Assignment Declare(const control::TensorSpec& spec);

  size_t names() const { return names_.size(); }

 private:
  using Variant = std::pair<uint32_t, std::vector<int64_t>>;  // dtype, shape
  struct Name {
    uint64_t id = 0;
    std::optional<LanePlace> home;
    std::map<Variant, control::Assignment> variants;
  };

  // Elements of the tensor, or what is wrong with the declaration.
  static absl::StatusOr<uint64_t> Check(const control::TensorSpec& spec);
  absl::Status Assign(const control::TensorSpec& spec, control::Assignment* answer);

  Placement placement_;
  std::map<std::pair<uint32_t, std::string>, Name> names_;
  uint64_t next_id_ = 1;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_TENSOR_DIRECTORY_H_
