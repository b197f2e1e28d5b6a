#include "core/worker/local/local_offers.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/reduce/dtype.h"
#include "core/wire/wire.h"
#include "core/worker/memory/buffer_regions.h"

namespace byteps {

absl::Status LocalOffers::Prepare(LocalRound* round) {
  return role_->Small(*round) ? absl::OkStatus() : memory_->Show(round);
}

absl::Status LocalOffers::Send(LocalRound* round) {
  const Operation& operation = *round->operation;
  const Submission& asked = operation.asked;
  const bool small = role_->Small(*round), gives = role_->HasSource(operation);
  LocalReport& own = round->reports[neighbours_->own()];
  wire::OfferBody& offer = own.offer;
  offer.key = asked.tensor->cut->key();
  offer.fingerprint = operation.fingerprint;
  offer.round = operation.round;
  offer.elements = round->elements();
  offer.rank = neighbours_->own_rank();
  offer.dtype = round->dtype();
  offer.root = asked.kind == wire::Operation::kBroadcast ? asked.root : 0;
  offer.operation = asked.kind;
  offer.reduction = static_cast<uint8_t>(asked.reduction);
  offer.shape = static_cast<uint32_t>(asked.tensor->shape().size()) + 1;
  if (!small) {
    offer.key_size = endpoint_->caps().key_size;
    if (round->shown_input.region != nullptr) offer.memory |= wire::kOfferInput;
    if (round->shown_output.region != nullptr) offer.memory |= wire::kOfferOutput;
    offer.input_offset = round->shown_input.offset;
    offer.output_offset = round->shown_output.offset;
  }
  own.offered = true;
  const std::span<const std::byte> shape = std::as_bytes(std::span(asked.tensor->shape()));
  own.shape.Assign(shape);
  for (size_t index = 0; index < neighbours_->size(); ++index) {
    if (index == neighbours_->own()) continue;
    std::span<const std::byte> rest;
    if (small) {
      // Where only the leader folds, only it needs the bytes.
      const bool needs = !beyond_ || !IsPushPull(operation) || index == role_->Leader(operation);
      if (gives && needs) rest = {round->areas.source.address, round->areas.source.bytes};
      offer.way = rest.empty() ? wire::PayloadWay::kNone : wire::PayloadWay::kInline;
    } else {
      // Each peer has keys of its own.
      const absl::StatusOr<size_t> size = ShowTo(index, *round, own.keys);
      // The transport has lost it, and says next why: that is what everything is to end with. The others do not wait.
      if (absl::IsUnavailable(size.status())) continue;
      if (!size.ok()) return size.status();
      rest = std::as_bytes(std::span<const uint8_t>(own.keys, *size));
      offer.way = wire::PayloadWay::kInPlace;
    }
    const OfferHead head(offer, asked.tensor->shape(), endpoint_->MaxRecord() - rest.size());
    endpoint_->Send(Neighbours::PeerOf(index), wire::RecordType::kOffer, head.bytes(), rest);
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> LocalOffers::ShowTo(size_t index, const LocalRound& round, uint8_t* keys) {
  size_t size = 0;
  for (const BufferRegions::Place& place : {round.shown_input, round.shown_output}) {
    if (place.region == nullptr) continue;
    const int32_t code = endpoint_->transport().ExportKey(place.region, Neighbours::PeerOf(index), keys + size);
    if (code != BPS_OK) return MakeStatus(code, "the memory cannot be shown to " + neighbours_->description(index));
    size += endpoint_->caps().key_size;
  }
  return size;
}

const char* LocalOffers::Check(size_t index, const Offer& told) const {
  const wire::OfferBody& offer = told.body;
  if (offer.rank != neighbours_->rank(index) || !IsDtype(offer.dtype) ||
      offer.elements > UINT64_MAX / DtypeSize(offer.dtype)) {
    return "an invalid OFFER";
  }
  if (offer.way == wire::PayloadWay::kInline) {
    const uint64_t size = offer.elements * DtypeSize(offer.dtype);
    if (size > inline_bytes_ || size > told.rest.size()) return "an OFFER whose payload is cut off";
  } else if (offer.way == wire::PayloadWay::kInPlace) {
    if (offer.key_size > wire::kMaxKey || KeyBytes(offer) > told.rest.size()) return "an OFFER whose keys are cut off";
  }
  return nullptr;
}

void LocalOffers::Store(const Offer& told, LocalReport* report) {
  const wire::OfferBody& offer = told.body;
  if (offer.way == wire::PayloadWay::kInline) {
    report->payload.Assign(told.rest.first(offer.elements * DtypeSize(offer.dtype)));
  } else if (offer.way == wire::PayloadWay::kInPlace) {
    std::memcpy(report->keys, told.rest.data(), KeyBytes(offer));
  }
  report->offer = offer;
  report->shape.Assign(told.shape);
  report->offered = true;
}

size_t LocalOffers::KeyBytes(const wire::OfferBody& offer) {
  const size_t keys =
      ((offer.memory & wire::kOfferInput) != 0 ? 1 : 0) + ((offer.memory & wire::kOfferOutput) != 0 ? 1 : 0);
  return keys * offer.key_size;
}

// The words are the same on all ranks, whichever sees it first.
absl::Status LocalOffers::Compare(const LocalRound& round) const {
  const LocalReport& first = round.reports[0];
  const auto describe = [](const LocalReport& report) { return DescribeOffer(report.offer, report.shape.bytes()); };
  std::string others;
  for (size_t index = 1; index < neighbours_->size(); ++index) {
    const LocalReport& report = round.reports[index];
    if (SameAsked(report.offer, first.offer)) continue;
    absl::StrAppend(&others, "; ", neighbours_->description(index), ": ", describe(report));
    if (describe(report) == describe(first)) absl::StrAppend(&others, " (of another shape, root, scaling or number)");
  }
  if (others.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ranks disagree: ", neighbours_->description(0), ": ", describe(first), others));
}

}  // namespace byteps
