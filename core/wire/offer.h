// offer.h - what a worker tells the others of its host of a round: what it asks, and its bytes or keys to its memory.
//
//     OfferHead head(body, shape, endpoint.MaxRecord() - rest.size());    // as much as there is room for
//     endpoint.Send(peer, wire::RecordType::kOffer, head.bytes(), rest);
//
//     Offer offer;
//     if (!ReadOffer(record, &offer)) ...                                 // cut off
//     SameAsked(one.body, other.body)
//     DescribeOffer(offer.body, offer.shape)                              // "push_pull (sum) of float32, 2x4"
//
// The shape is for errors alone, as in a PUSH (core/wire/push_head.h): the fingerprint says whether two shapes are
// equal, the extents what they are.
#ifndef BYTEPS_CORE_WIRE_OFFER_H_
#define BYTEPS_CORE_WIRE_OFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/wire/shaped_head.h"
#include "core/wire/wire.h"

namespace byteps {

using OfferHead = ShapedHead<wire::OfferBody>;

struct Offer {
  wire::OfferBody body;
  std::span<const std::byte> shape;  // extents, int64_t each, not aligned; empty too if it was not told
  std::span<const std::byte> rest;   // payload or keys; the padding of the record is part of it
};

// False if there is less than the body says.
bool ReadOffer(std::span<const std::byte> record, Offer* offer);

// Do two members ask the same?
bool SameAsked(const wire::OfferBody& a, const wire::OfferBody& b);

std::string DescribeOffer(const wire::OfferBody& body, std::span<const std::byte> shape);

}  // namespace byteps

#endif  // BYTEPS_CORE_WIRE_OFFER_H_
