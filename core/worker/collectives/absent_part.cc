#include "core/worker/collectives/absent_part.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"
#include "core/wire/message.h"
#include "core/worker/collectives/peer_records.h"

namespace byteps {
namespace {

// Does a zero leave the result what it is without it?
bool IsNeutral(int32_t reduction) {
  return reduction == BPS_SUM || reduction == BPS_AVERAGE || reduction == BPS_ADASUM || reduction == BPS_BIT_OR ||
         reduction == BPS_BIT_XOR;
}

}  // namespace

AbsentPart AbsentPart::Of(const Collective& asked, int32_t own_rank, uint64_t round) {
  AbsentPart made;
  made.asked = PeerAnnouncement::Of(asked, own_rank, round);
  made.set_name = asked.set->name();
  made.ranks = asked.set->ranks();
  made.timeout = asked.timeout;
  return made;
}

absl::StatusOr<AbsentPart> AbsentPart::Decode(std::span<const std::byte> bytes) {
  absl::StatusOr<PeerAnnouncement> asked = PeerAnnouncement::Decode(bytes);
  if (!asked.ok()) return asked.status();
  const std::span<const std::byte> rest = asked->payload;
  wire::TakePartTail tail;
  if (!ReadStruct(rest, &tail) || tail.timeout <= 0 || tail.ranks > (rest.size() - sizeof tail) / sizeof(int32_t) ||
      rest.size() - sizeof tail - tail.ranks * sizeof(int32_t) != tail.set_name) {
    return absl::InvalidArgumentError("an invalid TAKE_PART");
  }
  AbsentPart decoded;
  decoded.timeout = tail.timeout;
  decoded.through_stages = tail.through_stages != 0;
  decoded.ranks.resize(tail.ranks);
  const std::byte* at = rest.data() + sizeof tail;
  if (tail.ranks != 0) std::memcpy(decoded.ranks.data(), at, tail.ranks * sizeof(int32_t));
  at += tail.ranks * sizeof(int32_t);
  decoded.set_name.assign(reinterpret_cast<const char*>(at), tail.set_name);
  decoded.asked = *std::move(asked);
  return decoded;
}

std::vector<std::byte> AbsentPart::Encode() const {
  const wire::TakePartTail tail{timeout, static_cast<uint32_t>(ranks.size()), static_cast<uint32_t>(set_name.size()),
                                through_stages ? 1u : 0u, 0};
  std::vector<std::byte> bytes(BytesOf(tail).begin(), BytesOf(tail).end());
  const auto put = [&](std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); };
  put(std::as_bytes(std::span<const int32_t>(ranks)));
  put(std::as_bytes(std::span<const char>(set_name)));
  return asked.Encode(bytes);
}

bool AbsentPart::Concerns(uint32_t rank) const {
  if (IsPairwise(asked.kind())) return asked.body.peer == static_cast<int32_t>(rank);
  return std::find(ranks.begin(), ranks.end(), static_cast<int32_t>(rank)) != ranks.end();
}

absl::Status AbsentPart::CheckGap(uint64_t seen) const {
  const uint64_t round = asked.body.round;
  if (round < seen || round - seen <= kMostSkipped) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", asked.body.rank,
                                          " asks this rank, which has joined, to take part in ", "round ", round,
                                          " of \"", asked.name, "\", of which it has seen ", seen));
}

absl::Status AbsentPart::CheckZeros(const std::string& who) const {
  const CollectiveKind kind = asked.kind();
  if (kind == CollectiveKind::kBarrier || (IsReducing(kind) && IsNeutral(asked.body.reduction))) {
    return absl::OkStatus();
  }
  const std::string what = IsReducing(kind) ? absl::StrCat(KindName(kind), " (", OpName(asked.body.reduction), ")")
                                            : std::string(KindName(kind));
  return absl::FailedPreconditionError(
      absl::StrCat(who, " has joined: it has no data, and counts as zeros until all ranks have joined. ", what,
                   " has no result with that; all_reduce, reduce and reduce_scatter of sums and averages, and "
                   "barriers, do. Call it before any rank joins, or after all have"));
}

absl::StatusOr<Collective> AbsentPart::ToCollective(int32_t own_rank, uint32_t job_size) const {
  absl::StatusOr<std::shared_ptr<ProcessSet>> set = ProcessSet::Make(set_name, ranks, job_size);
  if (!set.ok()) return set.status();
  if (!(*set)->PlaceOf(own_rank)) return absl::InvalidArgumentError("a TAKE_PART in a set without its receiver");
  const wire::AnnounceBody& body = asked.body;
  Collective zero;
  zero.kind = asked.kind();
  zero.reduction = body.reduction;
  zero.name = asked.name;
  zero.set = *std::move(set);
  zero.dtype = body.dtype;
  zero.shape = asked.shape;
  zero.splits = asked.splits;
  zero.root = body.root;
  zero.tag = body.tag;
  if (zero.kind == CollectiveKind::kSparseAllReduce) {
    zero.all_rows = body.tag;
    zero.shape[0] = 0;
    zero.indices = std::make_shared<SparseIndices>();
  }
  zero.scaled = (body.flags & wire::kScaled) != 0;
  zero.prescale = body.prescale;
  zero.postscale = body.postscale;
  zero.match = body.match;
  zero.group_size = body.group_size;
  zero.group_index = body.group_index;
  zero.timeout = timeout;
  return zero;
}

}  // namespace byteps
