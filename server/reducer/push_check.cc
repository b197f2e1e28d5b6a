#include "server/reducer/push_check.h"

#include <limits>

#include "abi/byteps.h"
#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"

namespace byteps {

absl::Status CheckPush(const wire::DataHeader& header, const PushLimits& limits) {
  const auto invalid = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("PUSH with ", what...));
  };
  if (header.rank != limits.rank) return invalid("rank ", header.rank, " from rank ", limits.rank);
  if (header.part >= header.parts) return invalid("part ", header.part, " of ", header.parts);
  if (header.memory.key_size != 0 && header.memory.key_size != limits.key_size) {
    return invalid("a key of ", header.memory.key_size, " bytes where keys have ", limits.key_size);
  }

  const auto later = [](const auto&... what) {
    return absl::UnimplementedError(absl::StrCat("this server does not know ", what...));
  };
  if (header.process_set != 0) return later("process sets (", header.process_set, ")");
  const bool asynchronous = header.operation == wire::Operation::kAsynchronous;
  if (asynchronous && !limits.asynchronous) return later("asynchronous tensors in a job without BYTEPS_ENABLE_ASYNC");
  if (asynchronous && header.reduction != BPS_SUM) return later("asynchronous reductions other than sums");
  if (header.operation > wire::Operation::kBroadcast && !asynchronous)
    return later("operation ", static_cast<int>(header.operation));
  if (header.codec != 0) return later("codec ", static_cast<int>(header.codec));
  const bool checked = (header.flags & wire::kFlagChecksum) != 0;
  if ((header.flags & ~wire::kFlagChecksum) != 0) return later("flags ", header.flags);
  if (header.contributors != 0) return later("contributor sets");
  if ((header.checksum != 0 && !checked) || header.memory.reserved != 0) {
    return later("what was put into reserved fields");
  }
  const bool in_place = header.way == wire::PayloadWay::kInPlace;
  if (header.way > wire::PayloadWay::kInPlace || (in_place && !limits.in_place)) {
    return later("payload way ", static_cast<int>(header.way));
  }
  if (!IsDtype(header.dtype)) return later("data type ", header.dtype);
  if (header.wire_dtype != header.dtype) return later("payloads of another type than the tensor's");
  if (header.operation != wire::Operation::kBroadcast) {
    if (const absl::Status status = CheckReduction(header.dtype, header.reduction); !status.ok()) {
      return later("reduction ", static_cast<int>(header.reduction), ": ", status.message());
    }
  }

  const size_t size = DtypeSize(header.dtype);
  if (header.elements > limits.slot_bytes / size) {
    return invalid(header.elements, " elements of ", DtypeName(header.dtype), ", more than a slot of ",
                   limits.slot_bytes, " bytes");
  }
  if (header.offset > std::numeric_limits<uint64_t>::max() / size - header.elements) {
    return invalid("offset ", header.offset);
  }
  const bool broadcast = header.operation == wire::Operation::kBroadcast;
  if (broadcast && (header.root < 0 || static_cast<uint32_t>(header.root) >= limits.workers)) {
    return invalid("root ", header.root, " of ", limits.workers);
  }
  const bool gives = !broadcast || static_cast<uint32_t>(header.root) == header.rank;
  const uint64_t bytes = gives ? header.elements * size : 0;
  if (header.payload_bytes != bytes) return invalid("a payload of ", header.payload_bytes, " bytes instead of ", bytes);
  switch (header.way) {
    case wire::PayloadWay::kNone:
      if (bytes != 0) return invalid("no payload");
      break;
    case wire::PayloadWay::kInline:
      if (limits.payload_bytes < bytes) return invalid("a payload that is cut off");
      break;
    case wire::PayloadWay::kLanded:
      if (bytes == 0) return invalid("an empty payload in a slot");
      break;
    case wire::PayloadWay::kInPlace:
      if (bytes == 0) return invalid("an empty payload in place");
      if (limits.payload_bytes < sizeof(wire::MemoryRef)) return invalid("a place that is cut off");
      if (!broadcast && header.memory.key_size == 0) return invalid("a payload in place, and no place for its result");
      break;
  }
  return absl::OkStatus();
}

}  // namespace byteps
