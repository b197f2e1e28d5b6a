#include "core/wire/offer.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"
#include "core/wire/message.h"
#include "core/wire/push_head.h"

namespace byteps {

OfferHead::OfferHead(const wire::OfferBody& body, std::span<const int64_t> shape, size_t room) {
  wire::OfferBody with_shape = body;
  with_shape.shape = 0;
  size_ = sizeof body;
  if (shape.size() <= wire::kMaxExtents && sizeof body + shape.size_bytes() <= room) {
    with_shape.shape = static_cast<uint32_t>(shape.size()) + 1;
    if (!shape.empty()) std::memcpy(bytes_.data() + size_, shape.data(), shape.size_bytes());
    size_ += shape.size_bytes();
  }
  std::memcpy(bytes_.data(), &with_shape, sizeof with_shape);
}

bool ReadOffer(std::span<const std::byte> record, Offer* offer) {
  if (!ReadStruct(record, &offer->body)) return false;
  const std::span<const std::byte> rest = record.subspan(sizeof offer->body);
  const uint64_t extents = offer->body.shape == 0 ? 0 : offer->body.shape - 1;
  if (extents > wire::kMaxExtents || extents * sizeof(int64_t) > rest.size()) return false;
  offer->shape = rest.first(extents * sizeof(int64_t));
  offer->rest = rest.subspan(offer->shape.size());
  return true;
}

bool SameAsked(const wire::OfferBody& a, const wire::OfferBody& b) {
  return a.key == b.key && a.fingerprint == b.fingerprint && a.elements == b.elements;
}

std::string DescribeOffer(const wire::OfferBody& body, std::span<const std::byte> shape) {
  const std::string what = body.operation == wire::Operation::kBroadcast
                               ? absl::StrCat("broadcast from rank ", body.root)
                               : absl::StrCat("push_pull (", OpName(body.reduction), ")");
  if (body.shape == 0) return absl::StrCat(what, " of ", DtypeName(body.dtype), ", ", body.elements, " elements");
  std::vector<int64_t> extents(shape.size() / sizeof(int64_t));
  if (!extents.empty()) std::memcpy(extents.data(), shape.data(), extents.size() * sizeof(int64_t));
  return absl::StrCat(what, " of ", DtypeName(body.dtype), ", ", DescribeShape(extents));
}

}  // namespace byteps
