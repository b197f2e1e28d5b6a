#include "core/wire/push_head.h"

#include "absl/strings/str_cat.h"

namespace byteps {

bool ReadPush(std::span<const std::byte> body, Push* push) {
  return ReadShaped(body, &push->header, &push->shape, &push->payload);
}

std::string DescribeShape(std::span<const int64_t> shape) {
  if (shape.empty()) return "scalar";
  std::string text;
  for (size_t i = 0; i < shape.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : "x", shape[i]);
  return text;
}

}  // namespace byteps
