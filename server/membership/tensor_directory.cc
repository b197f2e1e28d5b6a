#include "server/membership/tensor_directory.h"

#include <algorithm>
#include <utility>

#include "abi/byteps.h"
#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/reduce/dtype.h"

namespace byteps {
namespace {

// The rounds from which on tensors are cut anew: soon, when something is known, and ever more rarely.
constexpr uint64_t kFirstCut = 2;
uint64_t NextCut(uint64_t from) { return from == 0 ? kFirstCut : 2 * from; }

}  // namespace

absl::StatusOr<uint64_t> TensorDirectory::Check(const control::TensorSpec& spec) {
  if (spec.process_set() != 0) return absl::UnimplementedError("process sets are not supported yet");
  if (spec.mode() != BPS_MODE_SYNCHRONOUS && spec.mode() != BPS_MODE_ASYNCHRONOUS) {
    return absl::UnimplementedError("there is no mode " + std::to_string(spec.mode()));
  }
  if (spec.name().empty()) return absl::InvalidArgumentError("a tensor needs a name");
  if (spec.name().size() > kMaxNameBytes) {
    return absl::InvalidArgumentError("its name has " + std::to_string(spec.name().size()) + " bytes; at most " +
                                      std::to_string(kMaxNameBytes) + " are possible");
  }
  if (!IsDtype(spec.dtype())) {
    return absl::InvalidArgumentError("there is no data type " + std::to_string(spec.dtype()));
  }
  if (spec.shape_size() > kMaxDimensions) {
    return absl::InvalidArgumentError("it has " + std::to_string(spec.shape_size()) + " dimensions; at most " +
                                      std::to_string(kMaxDimensions) + " are possible");
  }
  const uint64_t most = kMaxTensorBytes / DtypeSize(spec.dtype());
  bool empty = false;
  for (const int64_t extent : spec.shape()) {
    if (extent < 0) return absl::InvalidArgumentError("an extent of its shape is " + std::to_string(extent));
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  uint64_t elements = 1;
  for (const int64_t extent : spec.shape()) {
    if (static_cast<uint64_t>(extent) > most / elements) {
      return absl::InvalidArgumentError("it is larger than " + std::to_string(kMaxTensorBytes) + " bytes");
    }
    elements *= static_cast<uint64_t>(extent);
  }
  return elements;
}

absl::Status TensorDirectory::Assign(const control::TensorSpec& spec, control::Assignment* answer) {
  const absl::StatusOr<uint64_t> elements = Check(spec);
  if (!elements.ok()) return elements.status();
  const std::pair<uint32_t, std::string> key(spec.process_set(), spec.name());
  const Shape shape(spec.dtype(), std::vector<int64_t>(spec.shape().begin(), spec.shape().end()));
  const auto known = names_.find(key);
  if (known != names_.end()) {
    if (known->second.mode != spec.mode()) {
      const bool now = spec.mode() == BPS_MODE_ASYNCHRONOUS;
      return absl::FailedPreconditionError(std::string("it is declared ") + (now ? "asynchronous" : "synchronous") +
                                           " here, and " + (now ? "synchronous" : "asynchronous") + " elsewhere");
    }
    const auto assigned = known->second.variants.find(shape);
    if (assigned != known->second.variants.end()) {
      if (absl::Status status = Recut(spec, known->second, &assigned->second); !status.ok()) return status;
      Describe(spec, assigned->second, answer);
      return absl::OkStatus();
    }
    if (known->second.variants.size() >= kMaxVariants) {
      return absl::ResourceExhaustedError("it was declared with " + std::to_string(kMaxVariants) +
                                          " shapes; give what changes its shape all the time a name of its own");
    }
  } else if (names_.size() >= kMaxNames) {
    return absl::ResourceExhaustedError("this session has " + std::to_string(kMaxNames) +
                                        " tensors; names that change with every step are not meant");
  }

  if (spec.from_round() != 0) return absl::InternalError("it was never declared");

  // Nothing is remembered of a tensor that cannot be placed.
  const std::optional<LanePlace> home = known == names_.end() ? std::nullopt : known->second.home;
  const uint64_t id = known == names_.end() ? next_id_ : known->second.id;
  absl::StatusOr<Placed> placed =
      placement_.Add(*elements, static_cast<uint32_t>(DtypeSize(spec.dtype())), home, id - 1);
  if (!placed.ok()) return placed.status();
  Name& name = names_[key];
  if (name.id == 0) name.id = next_id_++;
  name.mode = spec.mode();
  if (!name.home.has_value()) name.home = placed->home();
  Variant& made = name.variants[shape];
  made.key = name.id << 16 | (name.variants.size() - 1);
  // What is as small as a first part may be stays whole.
  const bool large = *elements > Placement::kLeastFirst / DtypeSize(spec.dtype());
  // What servers keep stays where it is.
  const bool moves = spec.mode() == BPS_MODE_SYNCHRONOUS;
  made.cut_again = name.variants.size() == 1 && large && moves && placement_.adapts();
  made.cuts.push_back({0, std::make_shared<Placed>(*std::move(placed))});
  Describe(spec, made, answer);
  return absl::OkStatus();
}

// Sees to it that the cut that is asked for is there.
absl::Status TensorDirectory::Recut(const control::TensorSpec& spec, const Name& name, Variant* variant) {
  const Cut& last = variant->cuts.back();
  if (FindCut(*variant, spec.from_round()) != nullptr) return absl::OkStatus();
  if (!variant->cut_again || spec.from_round() != NextCut(last.from_round)) {
    return absl::InternalError("there is no cut from round " + std::to_string(spec.from_round()) + " on");
  }
  uint64_t slowest = 0;
  for (const auto& [rank, rate] : rates_) slowest = slowest == 0 ? rate : std::min(slowest, rate);
  Placed placed = placement_.Recut(*last.placed, *Check(spec), static_cast<uint32_t>(DtypeSize(spec.dtype())), slowest,
                                   name.id - 1);
  const bool same = placed.part_elements == last.placed->part_elements;
  variant->cuts.push_back({spec.from_round(), same ? last.placed : std::make_shared<Placed>(std::move(placed))});
  return absl::OkStatus();
}

const TensorDirectory::Cut* TensorDirectory::FindCut(const Variant& variant, uint64_t from_round) {
  const auto cut = std::find_if(variant.cuts.begin(), variant.cuts.end(),
                                [&](const Cut& candidate) { return candidate.from_round == from_round; });
  return cut == variant.cuts.end() ? nullptr : &*cut;
}

void TensorDirectory::Describe(const control::TensorSpec& spec, const Variant& variant, control::Assignment* answer) {
  const Placed& placed = *FindCut(variant, spec.from_round())->placed;
  *answer->mutable_tensor() = spec;
  answer->mutable_tensor()->clear_bytes_per_second();
  answer->set_key(variant.key);
  answer->set_part_elements(placed.part_elements);
  if (variant.cut_again) answer->set_next_cut(NextCut(spec.from_round()));
  for (const PartRun& run : placed.runs) {
    control::Assignment::Run& out = *answer->add_runs();
    out.set_parts(run.parts);
    out.set_server(run.place.server);
    out.set_lane(run.place.lane);
  }
}

control::Assignment TensorDirectory::Declare(const control::TensorSpec& spec, uint32_t rank) {
  if (spec.bytes_per_second() != 0) rates_[rank] = spec.bytes_per_second();
  control::Assignment answer;
  const absl::Status status = Assign(spec, &answer);
  if (!status.ok()) {
    answer.Clear();
    *answer.mutable_tensor() = spec;
    answer.set_code(StatusCode(status));
    answer.set_error("tensor \"" + spec.name().substr(0, 200) +
                     "\": " + std::string(status.message().data(), status.message().size()));
  }
  return answer;
}

}  // namespace byteps
