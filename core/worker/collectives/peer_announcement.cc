#include "core/worker/collectives/peer_announcement.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/reduce/dtype.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

template <typename T>
bool Take(std::span<const std::byte>* rest, size_t count, std::vector<T>* to) {
  if (rest->size() / sizeof(T) < count) return false;
  to->resize(count);
  if (count != 0) std::memcpy(to->data(), rest->data(), count * sizeof(T));
  *rest = rest->subspan(count * sizeof(T));
  return true;
}

void Put(std::vector<std::byte>* to, const void* from, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(from);
  to->insert(to->end(), bytes, bytes + size);
}

// Are the first dimensions of the ranks independent of each other?
bool RowsDiffer(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGather || kind == CollectiveKind::kAllToAll ||
         kind == CollectiveKind::kScatter || kind == CollectiveKind::kSparseAllReduce;
}

std::string ShapeText(const PeerAnnouncement& from, bool any_rows) {
  if (from.shape.empty()) return "scalar";
  if (!any_rows && !RowsDiffer(from.kind())) return absl::StrJoin(from.shape, "x");
  std::string text = "*";
  for (size_t i = 1; i < from.shape.size(); ++i) absl::StrAppend(&text, "x", from.shape[i]);
  return text;
}

bool IsSane(const wire::AnnounceBody& body, const PeerAnnouncement& decoded) {
  if (!IsKind(body.kind) || !IsDtype(body.dtype) || decoded.shape.size() > 64) return false;
  uint64_t bytes = DtypeSize(body.dtype);
  for (const int64_t extent : decoded.shape) {
    if (extent < 0) return false;
    const uint64_t factor = std::max<uint64_t>(1, static_cast<uint64_t>(extent));
    if (bytes > (uint64_t{1} << 56) / factor) return false;
    bytes *= factor;
  }
  if (body.kind == static_cast<int32_t>(CollectiveKind::kSparseAllReduce)) {
    const uint64_t row = std::max<uint64_t>(1, decoded.row_bytes());
    if (decoded.shape.empty() || body.tag < decoded.shape[0] ||
        static_cast<uint64_t>(body.tag) > (uint64_t{1} << 56) / row) {
      return false;
    }
  }
  return std::all_of(decoded.splits.begin(), decoded.splits.end(),
                     [](int64_t split) { return split >= 0 && split < (int64_t{1} << 56); });
}

}  // namespace

PeerAnnouncement PeerAnnouncement::Of(const Collective& asked, int32_t rank, uint64_t round) {
  PeerAnnouncement made;
  wire::AnnounceBody& body = made.body;
  body.id = asked.id(rank);
  body.round = round;
  body.set = asked.set->id();
  body.rank = rank;
  body.kind = static_cast<int32_t>(asked.kind);
  body.reduction = IsReducing(asked.kind) ? asked.reduction : 0;
  body.dtype = asked.dtype;
  body.root = IsRooted(asked.kind) ? asked.root : 0;
  body.peer = IsPairwise(asked.kind) ? asked.peer : 0;
  body.tag = asked.kind == CollectiveKind::kSparseAllReduce ? asked.all_rows : asked.tag;
  body.capacity = asked.capacity;
  body.prescale = asked.prescale;
  body.postscale = asked.postscale;
  body.match = asked.match;
  body.group_size = asked.group_size;
  body.group_index = asked.group_index;
  body.flags = (asked.output == nullptr ? wire::kNoCapacity : 0) | (asked.scaled ? wire::kScaled : 0);
  made.name = asked.name;
  made.shape = asked.shape;
  made.splits = asked.splits;
  return made;
}

absl::StatusOr<PeerAnnouncement> PeerAnnouncement::Decode(std::span<const std::byte> bytes) {
  const auto invalid = [] { return absl::InvalidArgumentError("an invalid ANNOUNCE"); };
  PeerAnnouncement decoded;
  wire::AnnounceBody& body = decoded.body;
  if (!ReadStruct(bytes, &body)) return invalid();
  std::span<const std::byte> rest = bytes.subspan(sizeof body);
  std::vector<char> name;
  if (!Take(&rest, body.name, &name) || !Take(&rest, body.shape, &decoded.shape) ||
      !Take(&rest, body.splits, &decoded.splits) || !Take(&rest, body.payload, &decoded.payload) ||
      !IsSane(body, decoded)) {
    return invalid();
  }
  decoded.name.assign(name.begin(), name.end());
  return decoded;
}

std::vector<std::byte> PeerAnnouncement::Encode(std::span<const std::byte> bytes) const {
  wire::AnnounceBody header = body;
  header.name = static_cast<uint32_t>(name.size());
  header.shape = static_cast<uint32_t>(shape.size());
  header.splits = static_cast<uint32_t>(splits.size());
  header.payload = static_cast<uint32_t>(bytes.size());
  std::vector<std::byte> record;
  record.reserve(sizeof header + name.size() + 8 * (shape.size() + splits.size()) + bytes.size());
  Put(&record, &header, sizeof header);
  Put(&record, name.data(), name.size());
  Put(&record, shape.data(), 8 * shape.size());
  Put(&record, splits.data(), 8 * splits.size());
  Put(&record, bytes.data(), bytes.size());
  return record;
}

uint64_t PeerAnnouncement::row_bytes() const {
  uint64_t bytes = DtypeSize(body.dtype);
  for (size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<uint64_t>(shape[i]);
  return bytes;
}

uint64_t PeerAnnouncement::bytes() const {
  return kind() == CollectiveKind::kSparseAllReduce ? SparseBytes(rows(), row_bytes()) : rows() * row_bytes();
}

std::string PeerAnnouncement::Terms(bool any_rows) const {
  const std::string number = body.match == 0 ? "" : absl::StrCat(", number ", body.match);
  if (kind() == CollectiveKind::kBarrier) return absl::StrCat("barrier", number);
  std::string text = IsPairwise(kind()) ? "a message" : KindName(kind());
  if (IsReducing(kind())) absl::StrAppend(&text, " (", OpName(body.reduction), ")");
  if (IsRooted(kind())) absl::StrAppend(&text, " with root ", body.root);
  absl::StrAppend(&text, " of ", DtypeName(body.dtype), ", ", ShapeText(*this, any_rows));
  if (kind() == CollectiveKind::kSparseAllReduce) absl::StrAppend(&text, ", rows of ", all_rows());
  // Elsewhere splits are each rank's own.
  if (kind() == CollectiveKind::kReduceScatter && !splits.empty()) {
    absl::StrAppend(&text, ", splits ", absl::StrJoin(splits, ", "));
  }
  if ((body.flags & wire::kScaled) != 0) {
    absl::StrAppend(&text, ", scaled by ", body.prescale, " before and ", body.postscale, " after");
  }
  if (body.group_size != 0) {
    absl::StrAppend(&text, ", operation ", body.group_index, " of a group of ", body.group_size);
  }
  return text + number;
}

absl::Status Compare(std::span<const PeerAnnouncement> announcements) {
  std::map<std::string, std::vector<int32_t>> sides;
  const PeerAnnouncement& first = announcements.front();
  const bool any_rows = std::any_of(announcements.begin(), announcements.end(), [](const PeerAnnouncement& each) {
    return each.kind() == CollectiveKind::kReceive && (each.body.flags & wire::kNoCapacity) != 0;
  });
  for (const PeerAnnouncement& each : announcements) {
    if (each.name != first.name) {
      return absl::InternalError(
          absl::StrCat("the names \"", each.name, "\" and \"", first.name, "\" have the same number: rename one"));
    }
    sides[each.Terms(any_rows)].push_back(each.body.rank);
  }
  if (sides.size() == 1) return absl::OkStatus();
  // By their first ranks.
  std::vector<std::pair<int32_t, std::string>> words;
  for (const auto& [terms, ranks] : sides) {
    words.emplace_back(ranks.front(), absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", JoinRanks(ranks),
                                                   ranks.size() == 1 ? " asks for " : " ask for ", terms));
  }
  std::sort(words.begin(), words.end());
  std::string text = "the ranks do not agree: ";
  for (size_t i = 0; i < words.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : "; ", words[i].second);
  return absl::FailedPreconditionError(text);
}

}  // namespace byteps
