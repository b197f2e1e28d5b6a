#include "core/worker/servers/push_sender.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/crc32c.h"
#include "core/base/status.h"
#include "core/wire/message.h"
#include "core/wire/push_head.h"

namespace byteps {
namespace {

constexpr size_t kMaxReasonBytes = 2048;  // of a CANCEL

}  // namespace

wire::DataHeader PushSender::HeaderOf(Time now, uint64_t rate, const Partition& partition) const {
  const Transfer& transfer = *partition.transfer;
  const Operation& operation = *transfer.operation;
  const Submission& asked = operation.asked;
  wire::DataHeader header{};
  header.key = asked.tensor->cut->key();
  header.fingerprint = operation.fingerprint;
  header.round = operation.round;
  header.offset = partition.first;
  header.elements = partition.source.elements;
  header.payload_bytes = partition.source.bytes;
  header.part = partition.part;
  header.parts = asked.tensor->cut->parts();
  header.rank = own_rank_;
  header.dtype = asked.tensor->dtype();
  header.wire_dtype = partition.source.dtype;
  header.codec = static_cast<uint8_t>(partition.source.codec);
  header.root = asked.kind == wire::Operation::kBroadcast ? asked.root : 0;
  const Time patience = std::max<Time>(operation.deadline - now, 0) / kMillisecond;
  header.timeout_ms = static_cast<uint32_t>(std::clamp<Time>(patience, 1, std::numeric_limits<uint32_t>::max()));
  header.operation = asked.tensor->asynchronous() ? wire::Operation::kAsynchronous : asked.kind;
  header.reduction = static_cast<uint8_t>(asked.reduction);
  header.priority = asked.priority;
  header.rate = static_cast<uint32_t>(std::min<uint64_t>(rate, std::numeric_limits<uint32_t>::max()));
  return header;
}

PushSender::Outcome PushSender::Post(Time now, uint64_t rate, Partition* partition, absl::Status* error) {
  ServerLane* lane = lanes_->Find(partition->peer);
  Carrier* carrier = lane->carrier;
  wire::DataHeader header = HeaderOf(now, rate, *partition);
  const bool into_device = partition->target.device.type == BPS_CUDA && partition->target.bytes != 0;
  if (into_device || (partition->target.bytes > inline_bytes_ && carrier->direct(lane->id))) {
    switch (carrier->Expose(partition, &header.memory, error)) {
      case Carrier::Grant::kYes:
        break;
      case Carrier::Grant::kLater:
        return Outcome::kLater;
      case Carrier::Grant::kFailed:
        return Outcome::kFailed;
    }
  }
  Outcome outcome = Outcome::kPosted;
  const bool from_device = partition->source.device.type == BPS_CUDA && partition->source.bytes != 0;
  if (partition->source.bytes <= inline_bytes_ && !from_device) {
    PostInline(partition, lane, &header);
  } else if (carrier->InPlace(*partition)) {
    outcome = PostInPlace(partition, lane, &header, error);
  } else {
    outcome = PostInSlot(partition, lane, &header, error);
  }
  if (outcome != Outcome::kPosted) return outcome;
  Operation* operation = partition->transfer->operation;
  operation->known = true;
  partition->posted_at = now;
  operation->NotePart(TimelineEvent::kPosted, now, partition->part);
  operation->asked.request->Advance(RequestState::kActive);
  return outcome;
}

void PushSender::AddChecksum(std::span<const std::byte> payload, wire::DataHeader* header) {
  header->flags |= wire::kFlagChecksum;
  header->checksum = Crc32c(payload);
}

PushSender::Outcome PushSender::PostInSlot(Partition* partition, ServerLane* lane, wire::DataHeader* header,
                                           absl::Status* error) {
  Endpoint& endpoint = lane->carrier->endpoint();
  const std::optional<RemoteSlot> slot = endpoint.TakeSlot(lane->id);
  if (!slot) return Outcome::kLater;
  const uint64_t bytes = partition->source.bytes;
  SendBuffer buffer;
  Carrier::Grant grant = Carrier::Grant::kFailed;
  if (slot->bytes < bytes) {
    *error = absl::InternalError(absl::StrCat("a partition of ", bytes, " bytes is too large for the ", slot->bytes,
                                              " byte slots of ", lane->description));
  } else {
    grant = lane->carrier->Source(partition, &buffer, error);
  }
  if (grant != Carrier::Grant::kYes) {
    endpoint.GiveBack(lane->id, *slot);
    return grant == Carrier::Grant::kLater ? Outcome::kLater : Outcome::kFailed;
  }
  header->way = wire::PayloadWay::kLanded;
  header->immediate = slot->immediate;
  if (checksum_) AddChecksum({static_cast<const std::byte*>(buffer.local.base), bytes}, header);
  const PushHead head(*header, partition->transfer->tensor().shape(), endpoint.MaxRecord());
  if (!endpoint.WriteSlot(lane->id, buffer.local, bytes, *slot, partition->task,
                          {wire::RecordType::kPush, head.bytes()})) {
    lane->carrier->EndSource(buffer);
    endpoint.GiveBack(lane->id, *slot);
    return Outcome::kLater;
  }
  lane->queued_bytes += RecordSize(head.bytes().size(), 0);
  writes_[partition->task] = {partition, buffer};
  ++partition->transfer->writes;
  partition->Move(PartitionState::kPosted);
  return Outcome::kPosted;
}

// The announcement is all that travels.
PushSender::Outcome PushSender::PostInPlace(Partition* partition, ServerLane* lane, wire::DataHeader* header,
                                            absl::Status* error) {
  wire::MemoryRef source{};
  switch (lane->carrier->Show(partition, &source, error)) {
    case Carrier::Grant::kYes:
      break;
    case Carrier::Grant::kLater:
      return Outcome::kLater;
    case Carrier::Grant::kFailed:
      return Outcome::kFailed;
  }
  header->way = wire::PayloadWay::kInPlace;
  partition->Move(PartitionState::kPosted);
  SendPush(lane, *partition, *header, BytesOf(source));
  return Outcome::kPosted;
}

void PushSender::PostInline(Partition* partition, ServerLane* lane, wire::DataHeader* header) {
  const std::span<const std::byte> payload(partition->source.address, partition->source.bytes);
  header->way = payload.empty() ? wire::PayloadWay::kNone : wire::PayloadWay::kInline;
  // Also of no payload: it says that the result is to have one.
  if (checksum_) AddChecksum(payload, header);
  partition->Move(PartitionState::kPosted);
  SendPush(lane, *partition, *header, payload);
}

void PushSender::SendPush(ServerLane* lane, const Partition& partition, const wire::DataHeader& header,
                          std::span<const std::byte> payload) {
  const size_t room = lane->carrier->endpoint().MaxRecord() - payload.size();
  const PushHead head(header, partition.transfer->tensor().shape(), room);
  lane->SendFor(partition.task, wire::RecordType::kPush, head.bytes(), payload);
}

Partition* PushSender::OnWritten(Carrier* carrier, uint64_t user) {
  const auto found = writes_.find(user);
  if (found == writes_.end()) return nullptr;
  const Write write = found->second;
  writes_.erase(found);
  carrier->EndSource(write.buffer);
  --write.partition->transfer->writes;
  return write.partition;
}

void PushSender::Cancel(const Tensor& tensor, uint64_t round, uint64_t fingerprint, uint32_t part,
                        const absl::Status& why) {
  ServerLane* lane = lanes_->Find(PeerOf(tensor.cut->place(part)));
  if (lane == nullptr) return;
  wire::RoundBody body{};
  // Enough for both sides of a disagreement, with some ranks' names.
  const size_t room = std::min(kMaxReasonBytes, lane->carrier->endpoint().MaxRecord() - sizeof body);
  const absl::string_view text = why.message().substr(0, room);
  body.key = tensor.cut->key();
  body.fingerprint = fingerprint;
  body.round = round;
  body.part = part;
  body.rank = own_rank_;
  body.code = StatusCode(why);
  body.text = static_cast<uint32_t>(text.size());
  body.flags = tensor.asynchronous() ? wire::kFlagAsynchronous : 0;
  lane->Send(wire::RecordType::kCancel, BytesOf(body), std::as_bytes(std::span<const char>(text.data(), text.size())));
}

}  // namespace byteps
