#include "core/worker/api/read_args.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace byteps {
namespace {

// The struct_size that the caller wrote, checked against the limits that hold in both directions.
absl::StatusOr<size_t> CallerSize(const StructRule& rule, const void* from) {
  if (from == nullptr) return absl::InvalidArgumentError(absl::StrCat(rule.name, " is NULL"));
  size_t size;
  std::memcpy(&size, from, sizeof(size));
  if (size < rule.first_size) {
    return absl::InvalidArgumentError(absl::StrCat(rule.name, ".struct_size is ", size, ", less than the ",
                                                   rule.first_size, " bytes of version 1.0: initialise it with ",
                                                   rule.init));
  }
  if (size > kMaxStructSize) {
    return absl::InvalidArgumentError(absl::StrCat(rule.name, ".struct_size is ", size, ", more than the allowed ",
                                                   kMaxStructSize, ": initialise it with ", rule.init));
  }
  return size;
}

}  // namespace

absl::Status CheckExtensions(const char* name, const bps_ext* ext, const ExtensionTypes& takes) {
  std::array<bool, std::tuple_size_v<ExtensionTypes>> taken = {};
  for (int count = 0; ext != nullptr; ext = ext->next, ++count) {
    if (count == kMaxExtensions) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".ext has more than ", kMaxExtensions, " extensions: does the chain form a ring?"));
    }
    if (ext->struct_size < sizeof(bps_ext) || ext->struct_size > kMaxStructSize) {
      return absl::InvalidArgumentError(absl::StrCat(name, ".ext: extension ", count, " has struct_size ",
                                                     ext->struct_size, ", expected ", sizeof(bps_ext), " to ",
                                                     kMaxStructSize));
    }
    if ((ext->flags & ~BPS_EXT_IGNORABLE) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".ext: extension ", count, " of type ", ext->type, " has unknown flags ", ext->flags));
    }
    const auto known = std::find(takes.begin(), takes.end(), ext->type);
    if (ext->type != 0 && known != takes.end()) {
      if (!std::exchange(taken[static_cast<size_t>(known - takes.begin())], true)) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, ".ext has two extensions of type ", ext->type));
    }
    if ((ext->flags & BPS_EXT_IGNORABLE) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, ".ext: extension ", count, " has type ", ext->type,
                                                     ", which this library does not know there (and it is not flagged "
                                                     "BPS_EXT_IGNORABLE): use a newer libbyteps.so"));
    }
  }
  return absl::OkStatus();
}

namespace {

// nullptr: there is none.
const bps_ext* Find(const bps_ext* ext, uint32_t type) {
  while (ext != nullptr && ext->type != type) ext = ext->next;
  return ext;
}

// What `ext`, if it is there, says of `extension`, called `what`.
template <typename Extension>
absl::Status ReadExtension(const char* name, const char* what, const bps_ext* ext, Extension* extension) {
  if (ext == nullptr) return absl::OkStatus();
  const auto* bytes = reinterpret_cast<const unsigned char*>(ext);
  for (size_t i = sizeof *extension; i < ext->struct_size; ++i) {
    if (bytes[i] == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".ext: byte ", i, " of ", what, " is set, but this library knows only ", sizeof *extension));
  }
  std::memcpy(extension, ext, std::min(ext->struct_size, sizeof *extension));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bps_streams> ReadStreams(const char* name, const bps_ext* ext) {
  bps_streams streams = BPS_STREAMS_INIT;
  const absl::Status status = ReadExtension(name, "bps_streams", Find(ext, BPS_EXT_STREAMS), &streams);
  if (!status.ok()) return status;
  if (streams.reserved != 0 || streams.output_later < 0 || streams.output_later > 1) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".ext: bps_streams.output_later is ", streams.output_later,
                                                   " (0 or 1), reserved is ", streams.reserved, " (0)"));
  }
  return streams;
}

absl::StatusOr<uint32_t> ReadCast(const char* name, const bps_ext* ext) {
  bps_cast cast = {};
  const absl::Status status = ReadExtension(name, "bps_cast", Find(ext, BPS_EXT_CAST), &cast);
  if (!status.ok()) return status;
  if (cast.reserved != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".ext: bps_cast.reserved is ", cast.reserved, ", not 0"));
  }
  return cast.dtype;
}

absl::Status ReadGiveUp(const char* name, const bps_ext* ext, absl::Status* given_up) {
  const bps_ext* const found = Find(ext, BPS_EXT_GIVE_UP);
  if (found == nullptr) return absl::OkStatus();
  bps_give_up read = {};
  if (absl::Status status = ReadExtension(name, "bps_give_up", found, &read); !status.ok()) return status;
  const char* reason = read.reason == nullptr ? "given up by its caller" : read.reason;
  if (!IsUtf8(reason)) return absl::InvalidArgumentError(absl::StrCat(name, ".ext: bps_give_up.reason is not UTF-8"));
  *given_up = absl::CancelledError(reason);
  return absl::OkStatus();
}

absl::Status ReadMatch(const char* name, const bps_ext* ext, uint64_t* number) {
  bps_match read = {};
  const absl::Status status = ReadExtension(name, "bps_match", Find(ext, BPS_EXT_MATCH), &read);
  if (status.ok()) *number = read.number;
  return status;
}

absl::Status ReadStruct(const StructRule& rule, const void* from, void* to) {
  absl::StatusOr<size_t> size = CallerSize(rule, from);
  if (!size.ok()) return size.status();
  const unsigned char* bytes = static_cast<const unsigned char*>(from);
  for (size_t i = rule.size; i < *size; ++i) {
    if (bytes[i] == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(rule.name, ": a field at byte ", i,
                                                   " is set, but this library knows only ", rule.size,
                                                   " bytes of it: use a newer libbyteps.so"));
  }
  if (rule.extensible) {
    const bps_ext* ext;
    std::memcpy(&ext, bytes + sizeof(size_t), sizeof(ext));
    absl::Status status = CheckExtensions(rule.name, ext, rule.takes);
    if (!status.ok()) return status;
  }
  std::memcpy(to, from, std::min(*size, rule.size));
  std::memcpy(to, &rule.size, sizeof(rule.size));
  return absl::OkStatus();
}

absl::Status WriteStruct(const StructRule& rule, const void* from, void* to) {
  absl::StatusOr<size_t> size = CallerSize(rule, to);
  if (!size.ok()) return size.status();
  const size_t count = std::min(*size, rule.size) - sizeof(size_t);
  std::memcpy(static_cast<char*>(to) + sizeof(size_t), static_cast<const char*>(from) + sizeof(size_t), count);
  return absl::OkStatus();
}

}  // namespace byteps
