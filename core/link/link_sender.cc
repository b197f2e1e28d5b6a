#include "core/link/link_sender.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/link/greeting.h"

namespace byteps {
namespace {

// More than this of what goes without credits never waits: a peer that asks again and again and reads nothing gets one
// answer fewer, and fills no memory.
constexpr size_t kMaxUrgent = 16;

}  // namespace

void LinkSender::MarkDirty(PeerId peer, Link* link) {
  if (link->dirty) return;
  link->dirty = true;
  dirty_.push_back(peer);
}

void LinkSender::WantRoom(Link* link) {
  link->wants_room = true;
  room_wanted_ = true;
}

void LinkSender::Urgent(PeerId peer, Link* link, wire::RecordType type, std::span<const std::byte> body) {
  if (link->urgent.size() >= kMaxUrgent && type != wire::RecordType::kCredit) return;
  link->urgent.emplace_back(caps_.max_message, &memory_);
  link->urgent.back().Append(type, body, {});
  MarkDirty(peer, link);
}

void LinkSender::Queue(PeerId peer, Link* link, wire::RecordType type, std::span<const std::byte> fixed,
                       std::span<const std::byte> payload) {
  if (link->outbox.empty() || !link->outbox.back().Append(type, fixed, payload)) {
    link->outbox.emplace_back(caps_.max_message, &memory_);
    link->outbox.back().Append(type, fixed, payload);
  }
  link->outbox_bytes += RecordSize(fixed.size(), payload.size());
  MarkDirty(peer, link);
}

// False: the transport takes nothing more now.
bool LinkSender::Post(PeerId peer, Link* link, MessageBuilder* message) {
  message->Finish(link->spec.session, link->spec.epoch, link->owed_credits);
  const auto bytes = message->bytes();
  const int32_t code = transport_->PostSend(peer, bytes.data(), bytes.size(), 0);
  if (code == BPS_TRANSPORT_AGAIN) return false;
  if (code != BPS_OK) {
    sink_->OnRefused(peer, link, code, absl::StrCat("sending to ", link->spec.description));
    return false;
  }
  MessageLeft(link, *message);
  return true;
}

void LinkSender::MessageLeft(Link* link, const MessageBuilder& message) {
  link->owed_credits = 0;
  BPS_VERBOSE(*log_, 2) << "message to " << link->spec.description << ": " << message.records() << " records, "
                        << message.bytes().size() << " bytes";
}

// True if nothing is left that the transport would not take.
bool LinkSender::FlushLink(PeerId peer, Link* link) {
  if (link->owed) {
    if (!FlushRecords(peer, link, 1)) return false;
    const int32_t code = PostTogether(peer, link);
    if (code == BPS_TRANSPORT_AGAIN) return false;
    if (code != BPS_OK && code != BPS_UNIMPLEMENTED) {
      sink_->OnRefused(peer, link, code,
                       absl::StrCat("writing ", link->owed->size, " bytes to ", link->spec.description));
      return false;
    }
  }
  return FlushRecords(peer, link, 0) && FlushOwed(peer, link);
}

// The last message that waits, and the owed write behind it, as one; or UNIMPLEMENTED.
int32_t LinkSender::PostTogether(PeerId peer, Link* link) {
  if (link->state != LinkState::kReady || link->outbox.size() != 1 || link->send_credits == 0) {
    return BPS_UNIMPLEMENTED;
  }
  MessageBuilder& message = link->outbox.front();
  message.Finish(link->spec.session, link->spec.epoch, link->owed_credits);
  const OwedWrite& owed = *link->owed;
  const int32_t code =
      transport_->PostSendAndWrite(peer, message.bytes(), owed.from, owed.size, owed.to(), owed.immediate, owed.user);
  if (code != BPS_OK) return code;
  MessageLeft(link, message);
  link->owed.reset();
  PopMessage(link);
  return BPS_OK;
}

// The first message has left.
void LinkSender::PopMessage(Link* link) {
  const size_t size = link->outbox.front().bytes().size() - sizeof(wire::MessageHeader);
  --link->send_credits;
  link->outbox_bytes -= std::min(link->outbox_bytes, size);
  link->outbox.pop_front();
}

bool LinkSender::FlushOwed(PeerId peer, Link* link) {
  if (!link->owed) return true;
  const OwedWrite owed = *link->owed;
  if (!PostWrite(peer, link, owed.from, owed.size, owed.to(), owed.immediate, owed.user)) return false;
  link->owed.reset();
  return true;
}

bool LinkSender::PostWrite(PeerId peer, Link* link, const bps_local& from, size_t size, const bps_remote& to,
                           uint32_t immediate, uint64_t user) {
  const int32_t code = transport_->PostWrite(peer, from, size, to, immediate, user);
  if (code == BPS_OK) return true;
  if (code == BPS_TRANSPORT_AGAIN) {
    WantRoom(link);
  } else {
    sink_->OnRefused(peer, link, code, absl::StrCat("writing ", size, " bytes to ", link->spec.description));
  }
  return false;
}

// The record leaves before its bytes: its reader then knows what they are.
bool LinkSender::WriteAnnounced(PeerId peer, Link* link, const bps_local& from, size_t size, const bps_remote& to,
                                uint32_t immediate, uint64_t user, const Announcement& record) {
  // Of small ones several records share a message, behind their writes.
  if (size < kBulk || record.fixed.empty()) {
    if (!PostWrite(peer, link, from, size, to, immediate, user)) return false;
    if (!record.fixed.empty()) Queue(peer, link, record.type, record.fixed, {});
    return true;
  }
  Queue(peer, link, record.type, record.fixed, {});
  OwedWrite& owed = link->owed.emplace(OwedWrite{from, size, {}, to.key_size, to.offset, immediate, user});
  std::memcpy(owed.key.data(), to.key, to.key_size);
  FlushLink(peer, link);
  return true;
}

// Nothing of the link goes any more.
void LinkSender::Abandon(PeerId peer, Link* link, int32_t code) {
  link->outbox.clear();
  link->urgent.clear();
  link->outbox_bytes = 0;
  if (link->owed) sink_->OnWriteDropped(peer, link->owed->user, code);
  link->owed.reset();
}

// True if no more than so many messages are in the peer's outbox afterwards, or it waits for credits.
bool LinkSender::FlushRecords(PeerId peer, Link* link, size_t most) {
  while (!link->urgent.empty()) {
    if (!Post(peer, link, &link->urgent.front())) return false;
    link->urgent.pop_front();
  }
  if (link->state != LinkState::kReady) return true;
  FlushReturns(peer, link);
  while (link->outbox.size() > most) {
    if (link->send_credits == 0) break;
    if (!Post(peer, link, &link->outbox.front())) return false;
    PopMessage(link);
  }
  if (link->owed_credits >= std::max<uint32_t>(1, (caps_.receive_pool - kReservedMessages) / 2)) {
    Urgent(peer, link, wire::RecordType::kCredit, {});
    if (!Post(peer, link, &link->urgent.front())) return false;
    link->urgent.pop_front();
  }
  // What waits for credits is flushed when they come.
  return true;
}

void LinkSender::FlushReturns(PeerId peer, Link* link) {
  // An immediate costs 4 bytes: all that can be outstanding fits into one record of the smallest max_message many
  // times over, but a lease may be as large as its owner likes.
  constexpr size_t kMaxPerRecord = 1024;
  size_t at = 0;
  while (at < link->returns.size()) {
    const size_t count = std::min(kMaxPerRecord, link->returns.size() - at);
    const wire::ReturnBody body{static_cast<uint32_t>(count), 0};
    Queue(peer, link, wire::RecordType::kReturn, BytesOf(body),
          std::as_bytes(std::span<const uint32_t>(link->returns.data() + at, count)));
    at += count;
  }
  link->returns.clear();
}

bool LinkSender::Flush() {
  if (dirty_.empty()) return false;
  flushing_.clear();
  flushing_.swap(dirty_);
  for (PeerId peer : flushing_) {
    Link* link = sink_->FindLink(peer);
    if (link == nullptr) continue;
    link->dirty = false;
    if (link->state != LinkState::kGreeting && link->state != LinkState::kReady) continue;
    if (!FlushLink(peer, link)) MarkDirty(peer, link);
  }
  return true;
}

bool LinkSender::Write(PeerId peer, Link* link, const bps_local& from, size_t size, const bps_remote& to,
                       uint32_t immediate, uint64_t user, const Announcement& record) {
  // Records that wait would come behind these bytes, and others wait for them: a slot given back, what was written
  // before. With a record of its own they go along.
  if (link->owed || (size >= kBulk && record.fixed.empty() && link->dirty)) {
    if (!FlushLink(peer, link)) {
      WantRoom(link);
      return false;
    }
  }
  return WriteAnnounced(peer, link, from, size, to, immediate, user, record);
}

}  // namespace byteps
