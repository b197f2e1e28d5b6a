#include "core/wire/message.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

constexpr size_t kAlign = 8;
// As most transports have it. At once, so that what fills a message is not moved while it grows.
constexpr size_t kCommonCapacity = size_t{16} << 10;

size_t Padded(size_t size) { return (size + kAlign - 1) / kAlign * kAlign; }

}  // namespace

size_t RecordSize(size_t fixed, size_t payload) { return sizeof(wire::RecordHeader) + Padded(fixed + payload); }

MessageBuilder::MessageBuilder(size_t capacity, std::pmr::memory_resource* memory)
    : capacity_(capacity), bytes_(memory) {
  bytes_.Reserve(std::min(capacity, kCommonCapacity));
  std::memset(bytes_.Extend(sizeof(wire::MessageHeader)), 0, sizeof(wire::MessageHeader));
}

bool MessageBuilder::Append(wire::RecordType type, std::span<const std::byte> fixed,
                            std::span<const std::byte> payload) {
  const size_t size = RecordSize(fixed.size(), payload.size());
  if (bytes_.size() + size > capacity_ || records_ == UINT16_MAX) return false;
  const wire::RecordHeader header{type, 0, static_cast<uint32_t>(size)};
  std::byte* at = bytes_.Extend(size);
  std::memcpy(at, &header, sizeof header);
  at += sizeof header;
  if (!fixed.empty()) std::memcpy(at, fixed.data(), fixed.size());
  at += fixed.size();
  if (!payload.empty()) std::memcpy(at, payload.data(), payload.size());
  at += payload.size();
  std::memset(at, 0, Padded(fixed.size() + payload.size()) - fixed.size() - payload.size());
  ++records_;
  return true;
}

void MessageBuilder::Finish(uint64_t session, uint32_t epoch, uint32_t credits) {
  const wire::MessageHeader header{wire::kMagic, wire::kVersion, records_, session, epoch, credits};
  std::memcpy(bytes_.data(), &header, sizeof header);
}

absl::Status MessageReader::Parse(std::span<const std::byte> bytes) {
  left_ = 0;
  if (!ReadStruct(bytes, &header_)) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", bytes.size(), " bytes is shorter than its header"));
  }
  if (header_.magic != wire::kMagic) return absl::InvalidArgumentError("a message that is not of this protocol");
  if (header_.version != wire::kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of wire version ", header_.version, "; this release speaks ", wire::kVersion));
  }
  rest_ = bytes.subspan(sizeof header_);
  // All sizes are checked before the first record is handed out: a message is taken as a whole or not at all.
  std::span<const std::byte> rest = rest_;
  for (uint16_t i = 0; i < header_.records; ++i) {
    wire::RecordHeader record;
    if (!ReadStruct(rest, &record) || record.size < sizeof record || record.size % kAlign != 0 ||
        record.size > rest.size()) {
      return absl::InvalidArgumentError(absl::StrCat("record ", i, " of ", header_.records, " is cut off"));
    }
    rest = rest.subspan(record.size);
  }
  if (!rest.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(rest.size(), " bytes behind the last record of a message"));
  }
  left_ = header_.records;
  return absl::OkStatus();
}

std::optional<Record> MessageReader::Next() {
  if (left_ == 0) return std::nullopt;
  --left_;
  wire::RecordHeader header;
  // Over shared memory its sender can still write it: what Parse has found need not be there any more.
  if (!ReadStruct(rest_, &header) || header.size < sizeof header || header.size > rest_.size()) {
    left_ = 0;
    return std::nullopt;
  }
  Record record{header.type, header.flags, rest_.subspan(sizeof header, header.size - sizeof header)};
  rest_ = rest_.subspan(header.size);
  return record;
}

}  // namespace byteps
