#include "core/wire/offer.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"
#include "core/wire/push_head.h"

namespace byteps {

bool ReadOffer(std::span<const std::byte> record, Offer* offer) {
  return ReadShaped(record, &offer->body, &offer->shape, &offer->rest);
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
