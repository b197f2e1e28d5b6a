#include "server/tensor_directory.h"

#include <algorithm>

#include "abi/byteps.h"
#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/status.h"

namespace byteps {
namespace {

// The rounds from which on tensors are cut anew: soon, when something is known, and ever more rarely.
constexpr uint64_t kFirstCut = 4;
uint64_t NextCut(uint64_t from) { return from < 256 ? 4 * from : from + 1024 - from % 1024; }

void Describe(const Placed& placed, control::Assignment* answer) {
  answer->set_part_elements(placed.part_elements);
  for (const PartRun& run : placed.runs) {
    control::Assignment::Run& out = *answer->add_runs();
    out.set_parts(run.parts);
    out.set_server(run.place.server);
    out.set_lane(run.place.lane);
  }
}

Placed PlacedOf(const control::Assignment& assignment) {
  Placed placed;
  placed.part_elements = assignment.part_elements();
  for (const control::Assignment::Run& run : assignment.runs()) {
    placed.runs.push_back({run.parts(), {run.server(), run.lane()}});
  }
  return placed;
}

}  // namespace

absl::StatusOr<uint64_t> TensorDirectory::Check(const control::TensorSpec& spec) {
  if (spec.process_set() != 0) return absl::UnimplementedError("process sets are not supported yet");
  if (spec.mode() != BPS_MODE_SYNCHRONOUS)
    return absl::UnimplementedError("only synchronous tensors are supported yet");
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
  const Variant variant(spec.dtype(), std::vector<int64_t>(spec.shape().begin(), spec.shape().end()));
  const auto known = names_.find(key);
  if (known != names_.end()) {
    const auto assigned = known->second.variants.find(variant);
    if (assigned != known->second.variants.end()) {
      if (spec.from_round() != 0) return AssignNext(spec, &known->second, &assigned->second, answer);
      *answer = assigned->second.front();
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
  if (!name.home.has_value()) name.home = placed->home();
  *answer->mutable_tensor() = spec;
  answer->set_key(name.id << 16 | name.variants.size());
  Describe(*placed, answer);
  // What is as small as a part may be stays whole.
  const bool large = *elements > Placement::kLeastPart / DtypeSize(spec.dtype());
  if (name.variants.empty() && large && placement_.adapts()) answer->set_next_cut(kFirstCut);
  name.variants[variant].push_back(*answer);
  return absl::OkStatus();
}

absl::Status TensorDirectory::AssignNext(const control::TensorSpec& spec, Name* name,
                                         std::deque<control::Assignment>* cuts, control::Assignment* answer) {
  const auto made = std::find_if(cuts->begin(), cuts->end(), [&](const control::Assignment& cut) {
    return cut.tensor().from_round() == spec.from_round();
  });
  if (made != cuts->end()) {
    *answer = *made;
    return absl::OkStatus();
  }
  const control::Assignment& last = cuts->back();
  if (last.next_cut() == 0 || last.next_cut() != spec.from_round()) {
    return absl::InternalError("there is no cut from round " + std::to_string(spec.from_round()) + " on");
  }
  uint64_t slowest = 0;
  for (const auto& [rank, rate] : rates_) slowest = slowest == 0 ? rate : std::min(slowest, rate);
  const uint64_t elements = *Check(spec);
  const Placed placed =
      placement_.Recut(PlacedOf(last), elements, static_cast<uint32_t>(DtypeSize(spec.dtype())), slowest, name->id - 1);
  *answer->mutable_tensor() = last.tensor();
  answer->mutable_tensor()->set_from_round(spec.from_round());
  answer->set_key(last.key());
  answer->set_next_cut(NextCut(spec.from_round()));
  Describe(placed, answer);
  cuts->push_back(*answer);
  if (cuts->size() > kKeptCuts) cuts->erase(cuts->begin() + 1);  // not the first: it may be declared again
  return absl::OkStatus();
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
