#include "core/wire/offer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "abi/byteps.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

using Bytes = std::vector<std::byte>;

wire::OfferBody Body() {
  wire::OfferBody body{};
  body.key = 5;
  body.elements = 6;
  body.dtype = BPS_FLOAT32;
  return body;
}

TEST(Offer, ComesBack) {
  const std::vector<int64_t> shape = {2, 3};
  const OfferHead head(Body(), shape, 4096);
  Bytes record(head.bytes().begin(), head.bytes().end());
  record.resize(record.size() + 24, std::byte{7});
  Offer offer;
  ASSERT_TRUE(ReadOffer(record, &offer));
  EXPECT_EQ(offer.body.key, 5u);
  ASSERT_EQ(offer.rest.size(), 24u);
  EXPECT_EQ(offer.rest[0], std::byte{7});
  EXPECT_EQ(DescribeOffer(offer.body, offer.shape), "push_pull (sum) of float32, 2x3");
}

TEST(Offer, LeavesTheShapeOutWhereThereIsNoRoom) {
  wire::OfferBody body = Body();
  body.shape = 3;  // as its sender describes itself
  const OfferHead head(body, std::vector<int64_t>{2, 3}, sizeof body + 15);
  Offer offer;
  ASSERT_TRUE(ReadOffer(head.bytes(), &offer));
  EXPECT_TRUE(offer.shape.empty());
  EXPECT_EQ(DescribeOffer(offer.body, offer.shape), "push_pull (sum) of float32, 6 elements");
}

TEST(Offer, WhatIsCutOffIsRefused) {
  const OfferHead head(Body(), std::vector<int64_t>{2, 3}, 4096);
  Offer offer;
  for (size_t size = 0; size < head.bytes().size(); ++size) EXPECT_FALSE(ReadOffer(head.bytes().first(size), &offer));
  for (uint32_t lie : {2u, 65u, 66u, 1u << 31, UINT32_MAX}) {
    wire::OfferBody body = Body();
    body.shape = lie;
    EXPECT_FALSE(ReadOffer(BytesOf(body), &offer)) << lie;
  }
}

TEST(Offer, WhatMakesTwoDifferent) {
  EXPECT_TRUE(SameAsked(Body(), Body()));
  for (int field = 0; field < 3; ++field) {
    wire::OfferBody other = Body();
    (field == 0 ? other.key : field == 1 ? other.fingerprint : other.elements) += 1;
    EXPECT_FALSE(SameAsked(Body(), other)) << field;
  }
}

}  // namespace
}  // namespace byteps
