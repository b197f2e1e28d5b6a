#include "core/wire/push_head.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/wire/message.h"

namespace byteps {

PushHead::PushHead(const wire::DataHeader& header, std::span<const int64_t> shape, size_t room) {
  wire::DataHeader with_shape = header;
  size_ = sizeof header;
  if (shape.size() <= wire::kMaxExtents && sizeof header + shape.size_bytes() <= room) {
    with_shape.shape = static_cast<uint32_t>(shape.size()) + 1;
    if (!shape.empty()) std::memcpy(bytes_.data() + size_, shape.data(), shape.size_bytes());
    size_ += shape.size_bytes();
  }
  std::memcpy(bytes_.data(), &with_shape, sizeof with_shape);
}

bool ReadPush(std::span<const std::byte> body, Push* push) {
  if (!ReadStruct(body, &push->header)) return false;
  const std::span<const std::byte> rest = body.subspan(sizeof push->header);
  const uint64_t extents = push->header.shape == 0 ? 0 : push->header.shape - 1;
  if (extents > wire::kMaxExtents || extents * sizeof(int64_t) > rest.size()) return false;
  push->shape = rest.first(extents * sizeof(int64_t));
  push->payload = rest.subspan(push->shape.size());
  return true;
}

std::string DescribeShape(std::span<const int64_t> shape) {
  if (shape.empty()) return "scalar";
  std::string text;
  for (size_t i = 0; i < shape.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : "x", shape[i]);
  return text;
}

}  // namespace byteps
