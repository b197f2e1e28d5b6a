#include "core/worker/collectives/collective.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/stable_hash.h"
#include "core/base/status.h"
#include "core/reduce/dtype.h"
#include "core/worker/collectives/adasum.h"
#include "core/worker/collectives/scale.h"

namespace byteps {
namespace {

// A limit of sanity: offsets and sums of a few such sizes stay far from overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 56;
constexpr size_t kMostDimensions = 64;
constexpr size_t kMostName = 1024;

uint64_t Product(const std::vector<int64_t>& shape, size_t first) {
  return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(std::min(first, shape.size())), shape.end(),
                         uint64_t{1},
                         [](uint64_t product, int64_t extent) { return product * static_cast<uint64_t>(extent); });
}

absl::Status CheckShape(const Collective& asked) {
  if (!IsDtype(asked.dtype)) return absl::InvalidArgumentError(absl::StrCat("there is no data type ", asked.dtype));
  if (asked.shape.size() > kMostDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", asked.shape.size(), " dimensions; at most ", kMostDimensions, " are possible"));
  }
  uint64_t bytes = DtypeSize(asked.dtype);
  for (const int64_t extent : asked.shape) {
    if (extent < 0) return absl::InvalidArgumentError(absl::StrCat("an extent of its shape is ", extent));
    // Also of tensors without elements: what the others make of the other extents must not overflow.
    const uint64_t factor = std::max<uint64_t>(1, static_cast<uint64_t>(extent));
    if (bytes > kMostBytes / factor) return absl::InvalidArgumentError("it has more than 2^56 bytes");
    bytes *= factor;
  }
  return absl::OkStatus();
}

absl::Status CheckSplits(const Collective& asked) {
  const bool takes = asked.kind == CollectiveKind::kAllToAll || asked.kind == CollectiveKind::kReduceScatter ||
                     asked.kind == CollectiveKind::kScatter;
  if (!takes) {
    if (asked.splits.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("it takes no splits");
  }
  const uint64_t members = asked.set->size();
  if (asked.splits.empty()) {
    if (asked.kind != CollectiveKind::kAllToAll || asked.rows() % members == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("its ", asked.rows(), " rows cannot be divided by ", members, " ranks: give splits"));
  }
  if (asked.splits.size() != members) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", asked.splits.size(), " splits for ", members, " ranks"));
  }
  uint64_t sum = 0;
  for (const int64_t split : asked.splits) {
    if (split < 0) return absl::InvalidArgumentError(absl::StrCat("a split is ", split));
    sum += std::min<uint64_t>(static_cast<uint64_t>(split), kMostBytes);
  }
  if (sum == asked.rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("its splits, ", absl::StrJoin(asked.splits, ", "), ", add up to ", sum,
                                                 " rows; it has ", asked.rows()));
}

absl::Status CheckMemory(const Collective& asked, const char* which, const std::byte* address, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (address == nullptr) return absl::InvalidArgumentError(absl::StrCat(which, " is NULL"));
  if (reinterpret_cast<uintptr_t>(address) % DtypeAlignment(asked.dtype) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(which, " is not aligned to ", DtypeAlignment(asked.dtype), " bytes"));
}

// May input and output be one?
bool InPlace(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
}

absl::Status CheckBuffers(const Collective& asked, int32_t own_rank) {
  const bool gives = GivesInput(asked, own_rank);
  if (gives) {
    if (absl::Status status = CheckMemory(asked, "input", asked.input, asked.bytes()); !status.ok()) return status;
  }
  if (asked.output == nullptr) return absl::OkStatus();
  if (absl::Status status = CheckMemory(asked, "output", asked.output, asked.capacity); !status.ok()) return status;
  if (!gives || (InPlace(asked.kind) && asked.input == asked.output)) return absl::OkStatus();
  const auto from = reinterpret_cast<uintptr_t>(asked.input), to = reinterpret_cast<uintptr_t>(asked.output);
  if (asked.bytes() == 0 || asked.capacity == 0) return absl::OkStatus();
  // Not by their ends, which may be no addresses.
  if (from <= to ? to - from >= asked.bytes() : from - to >= asked.capacity) return absl::OkStatus();
  return absl::InvalidArgumentError(InPlace(asked.kind) ? "input and output overlap without being equal"
                                                        : "input and output overlap");
}

absl::Status CheckRanks(const Collective& asked, int32_t own_rank) {
  const auto describe = [&](const char* what, int32_t rank) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", rank, " is not in ", asked.set->Describe()));
  };
  if (!asked.set->PlaceOf(own_rank)) return describe("this rank,", own_rank);
  if (IsRooted(asked.kind) && !asked.set->PlaceOf(asked.root)) return describe("root", asked.root);
  if (!IsPairwise(asked.kind)) return absl::OkStatus();
  if (!asked.set->PlaceOf(asked.peer)) return describe("peer", asked.peer);
  if (asked.peer == own_rank) return absl::InvalidArgumentError(absl::StrCat("peer ", asked.peer, " is this rank"));
  return absl::OkStatus();
}

absl::Status CheckScale(const Collective& asked) {
  if (!asked.scaled) return absl::OkStatus();
  if (!IsReducing(asked.kind) || asked.kind == CollectiveKind::kSparseAllReduce) {
    return absl::InvalidArgumentError("only reductions of whole tensors are scaled");
  }
  return CheckScalable(asked.dtype);
}

absl::Status CheckSparse(const Collective& asked) {
  if (asked.kind != CollectiveKind::kSparseAllReduce) return absl::OkStatus();
  if (asked.shape.empty()) return absl::InvalidArgumentError("a scalar has no rows");
  if (asked.all_rows < 0) return absl::InvalidArgumentError(absl::StrCat("an extent of its shape is ", asked.all_rows));
  if (static_cast<uint64_t>(asked.all_rows) > kMostBytes / std::max<uint64_t>(1, asked.row_bytes())) {
    return absl::InvalidArgumentError("it has more than 2^56 bytes");
  }
  if (asked.reduction == BPS_SUM || asked.reduction == BPS_AVERAGE) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(OpName(asked.reduction), " of rows of which some are missing has no meaning: sum or average"));
}

absl::Status CheckAll(const Collective& asked, int32_t own_rank) {
  if (asked.name.size() > kMostName) {
    return absl::InvalidArgumentError(absl::StrCat("its name has more than ", kMostName, " bytes"));
  }
  if (absl::Status status = CheckRanks(asked, own_rank); !status.ok()) return status;
  if (absl::Status status = CheckShape(asked); !status.ok()) return status;
  if (absl::Status status = CheckSplits(asked); !status.ok()) return status;
  if (IsReducing(asked.kind) && asked.reduction == BPS_ADASUM) {
    if (absl::Status status = adasum::CheckType(asked.dtype); !status.ok()) return status;
    if (asked.kind != CollectiveKind::kAllReduce) return absl::InvalidArgumentError("adasum is an all_reduce");
  } else if (IsReducing(asked.kind)) {
    if (absl::Status status = CheckReduction(asked.dtype, asked.reduction); !status.ok()) return status;
  }
  if (absl::Status status = CheckScale(asked); !status.ok()) return status;
  return CheckSparse(asked);
}

}  // namespace

const char* KindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kReceive:
      return "receive";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kSparseAllReduce:
      return "sparse_all_reduce";
  }
  return "unknown";
}

bool IsKind(int32_t kind) {
  return (kind >= BPS_ALL_REDUCE && kind <= BPS_BARRIER) ||
         kind == static_cast<int32_t>(CollectiveKind::kSparseAllReduce);
}

bool IsReducing(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce || kind == CollectiveKind::kSparseAllReduce;
}

bool IsRooted(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kScatter;
}

bool IsPairwise(CollectiveKind kind) { return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive; }

bool GivesInput(const Collective& asked, int32_t own_rank) {
  switch (asked.kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kScatter:
      return asked.root == own_rank;
    case CollectiveKind::kReceive:
    case CollectiveKind::kBarrier:
      return false;
    default:
      return true;
  }
}

bool GetsOutput(const Collective& asked, int32_t own_rank) {
  switch (asked.kind) {
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
      return asked.root == own_rank;
    case CollectiveKind::kSend:
    case CollectiveKind::kBarrier:
      return false;
    default:
      return true;
  }
}

uint64_t Collective::elements() const { return Product(shape, 0); }
uint64_t Collective::bytes() const {
  if (kind == CollectiveKind::kSparseAllReduce) return SparseBytes(rows(), row_bytes());
  return elements() * DtypeSize(dtype);
}
uint64_t Collective::row_bytes() const { return Product(shape, 1) * DtypeSize(dtype); }

uint64_t Collective::id(int32_t own_rank) const {
  StableHash hash;
  hash.Add(set->id());
  hash.Add(name);
  if (IsPairwise(kind)) {
    const bool sends = kind == CollectiveKind::kSend;
    hash.Add(static_cast<uint64_t>(sends ? own_rank : peer));
    hash.Add(static_cast<uint64_t>(sends ? peer : own_rank));
    hash.Add(static_cast<uint64_t>(tag));
  }
  return hash.value();
}

uint64_t Collective::IdOfName(std::string_view name) {
  StableHash hash;
  hash.Add(uint64_t{0});  // the number of the set of all ranks
  hash.Add(name);
  return hash.value();
}

std::string Collective::Describe() const {
  std::string text = KindName(kind);
  if (!name.empty()) absl::StrAppend(&text, " \"", name, "\"");
  if (kind != CollectiveKind::kBarrier) {
    absl::StrAppend(&text, " (", DtypeName(dtype), ", ", shape.empty() ? "scalar" : absl::StrJoin(shape, "x"));
    if (kind == CollectiveKind::kSparseAllReduce) absl::StrAppend(&text, " of ", all_rows, " rows");
    text += ')';
  }
  if (kind == CollectiveKind::kSend) absl::StrAppend(&text, " to rank ", peer, ", tag ", tag);
  if (kind == CollectiveKind::kReceive) absl::StrAppend(&text, " from rank ", peer, ", tag ", tag);
  if (!IsPairwise(kind)) absl::StrAppend(&text, " of ", set->Describe());
  return text;
}

absl::Status CheckRequest(const Collective& asked, int32_t own_rank) {
  const absl::Status status = CheckAll(asked, own_rank);
  return status.ok() ? status : Annotate(status, asked.Describe());
}

absl::Status Check(const Collective& asked, int32_t own_rank) {
  absl::Status status = CheckAll(asked, own_rank);
  if (status.ok()) status = CheckBuffers(asked, own_rank);
  return status.ok() ? status : Annotate(status, asked.Describe());
}

}  // namespace byteps
