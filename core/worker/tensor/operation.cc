#include "core/worker/tensor/operation.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "core/base/stable_hash.h"
#include "core/reduce/dtype.h"

namespace byteps {
namespace {

constexpr uint64_t kMatch = 0x6d61746368;

}  // namespace

uint32_t PartCount(const Operation& operation) {
  const Tensor& tensor = *operation.asked.tensor;
  return tensor.cut ? tensor.cut->parts() : 1;
}

Areas AreasOf(const Operation& operation, uint32_t own_rank) {
  const Submission& asked = operation.asked;
  const bool broadcast = asked.kind == wire::Operation::kBroadcast;
  const bool root = broadcast && static_cast<uint32_t>(asked.root) == own_rank;
  Areas areas;
  areas.source.elements = areas.target.elements = asked.tensor->elements();
  areas.source.dtype = areas.target.dtype = asked.tensor->dtype();
  if (!broadcast || root) {
    areas.source.address = const_cast<std::byte*>(asked.input);
    areas.source.bytes = asked.tensor->bytes();
    areas.source.device = asked.input_device;
    areas.source_buffer = asked.request->input_buffer();
  }
  if (!root) {
    areas.target.address = asked.output;
    areas.target.bytes = asked.tensor->bytes();
    areas.target.device = asked.output_device;
    areas.target_buffer = asked.request->output_buffer();
  }
  return areas;
}

uint64_t Fingerprint(const Submission& asked) {
  StableHash hash;
  hash.Add(asked.tensor->dtype());
  hash.Add(asked.tensor->shape().size());
  for (int64_t extent : asked.tensor->shape()) hash.Add(static_cast<uint64_t>(extent));
  hash.Add(static_cast<uint64_t>(asked.kind));
  hash.Add(static_cast<uint64_t>(asked.reduction));
  hash.Add(static_cast<uint64_t>(asked.root));
  if (asked.group_size != 0) {
    hash.Add(asked.group_size);
    hash.Add(asked.group_index);
  }
  if (asked.scaled) {
    hash.Add(std::bit_cast<uint64_t>(asked.prescale));
    hash.Add(std::bit_cast<uint64_t>(asked.postscale));
  }
  if (asked.match != 0) {
    // So that it is no place in a group and no factor.
    hash.Add(kMatch);
    hash.Add(asked.match);
  }
  return hash.value();
}

void Operation::NoteSubmitted() {
  if (asked.timeline == nullptr) return;
  if (!asked.timeline->on() || !asked.timeline->Wants(round, asked.submitted_at)) {
    asked.timeline = nullptr;
    return;
  }
  TimelineRecord record;
  record.event = TimelineEvent::kSubmitted;
  record.operation = id;
  record.at = asked.submitted_at;
  record.name = &asked.tensor->name().text();
  record.label = asked.kind == wire::Operation::kBroadcast ? "broadcast" : "push_pull";
  record.bytes = asked.tensor->bytes();
  record.number = round;
  record.priority = asked.priority;
  asked.timeline->Note(record);
}

std::string DescribeOperation(const Operation& operation) {
  const Submission& asked = operation.asked;
  const std::string what = asked.kind == wire::Operation::kBroadcast
                               ? absl::StrCat("broadcast from rank ", asked.root)
                               : absl::StrCat("push_pull (", OpName(asked.reduction), ")");
  return absl::StrCat(what, " of ", asked.tensor->Describe(), ", round ", operation.round,
                      asked.match == 0 ? "" : absl::StrCat(", number ", asked.match));
}

}  // namespace byteps
