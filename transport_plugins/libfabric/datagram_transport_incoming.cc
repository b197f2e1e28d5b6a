// What comes in at a datagram endpoint of libfabric: receives, messages, pieces of writes, immediates.
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "transport_plugins/common/peer_name.h"
#include "transport_plugins/libfabric/address.h"
#include "transport_plugins/libfabric/datagram_transport.h"
#include "transport_plugins/libfabric/event.h"
#include "transport_plugins/libfabric/fabric_library.h"

namespace byteps::fabric {
namespace {

constexpr size_t kMostIncoming = 65536;

}  // namespace

// ---- Incoming ----

void DatagramTransport::AddReceives() {
  const uint32_t count = endpoint_->provider().receives();
  auto pool = std::make_unique<BufferPool>(count, kPacketSize);
  const MemoryDomain memory = endpoint_->memory();
  if (memory.RegistersLocalMemory() && pool->Register(memory.get(), FI_RECV, memory.RandomKey()) != 0) {
    throw std::bad_alloc();
  }
  for (uint32_t i = 0; i < count; ++i) {
    receives_.push_back(std::make_unique<Packet>());
    Packet* receive = receives_.back().get();
    receive->kind = Packet::Kind::kReceive;
    receive->user = receives_.size() - 1;
    receive->buffer = i;
    receive->pool = pool.get();
    unposted_.push_back(receive);
  }
  receive_pools_.push_back(std::move(pool));
  PostReceives();
}

void DatagramTransport::PostReceives() {
  while (!unposted_.empty()) {
    Packet* receive = unposted_.back();
    const int code =
        wire_.Receive(receive->pool->at(receive->buffer), kPacketSize, receive->pool->descriptor(), &receive->scratch);
    if (code != 0) return;  // tried again with the next round
    unposted_.pop_back();
  }
}

void DatagramTransport::Repost(Packet* receive) {
  receive->leased = false;
  unposted_.push_back(receive);
  PostReceives();
}

size_t DatagramTransport::Poll(bps_event* events, size_t capacity) {
  if (events_.empty()) reasons_.Forget();
  if (events_.size() < capacity) Progress();
  const size_t count = std::min(capacity, events_.size());
  std::copy_n(events_.begin(), count, events);
  events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

void DatagramTransport::Progress() {
  now_ = Clock::now();
  Drain();
  PostReceives();
  CheckTime();
  ReportFailedPeers();
}

void DatagramTransport::Drain() {
  WireCompletion completions[32];
  while (const size_t count = wire_.Read(completions, std::size(completions))) {
    for (size_t i = 0; i < count; ++i) {
      const WireCompletion& completion = completions[i];
      if (completion.remote) {
        if (completion.error == 0) HandleImmediate(static_cast<uint32_t>(completion.data));
        continue;
      }
      auto* packet = static_cast<Packet*>(completion.context);
      if (packet == nullptr) continue;
      if (packet->kind != Packet::Kind::kReceive) {
        HandleSent(packet, completion);
      } else if (completion.error == 0) {
        HandleReceive(packet, completion.size);
      } else {
        Repost(packet);
      }
    }
  }
}

void DatagramTransport::HandleSent(Packet* packet, const WireCompletion& completion) {
  DatagramPeer* peer = packet->peer;
  --peer->with_provider;
  if (peer->state == PeerState::kDown) return Forget(peer->number);
  const int32_t code = completion.error == 0 ? BPS_OK : BPS_UNAVAILABLE;
  peer->progress = completion.error == 0 && packet->kind != Packet::Kind::kHello ? now_ : peer->progress;
  switch (packet->kind) {
    case Packet::Kind::kHello:
      peer->hello_out = false;
      if (completion.error != 0) return HandleLostHello(peer, completion.detail);
      break;
    case Packet::Kind::kPiece:
      --peer->pieces_out;
      peer->free_pieces.push_back(packet);
      break;
    case Packet::Kind::kWrite:
      peer->direct_writes.erase(std::find(peer->direct_writes.begin(), peer->direct_writes.end(), packet));
      --peer->writes_out;
      packet->accepted = false;
      End(peer, BPS_EVENT_WRITTEN, packet->user, code);
      peer->free_messages.push_back(packet);
      break;
    case Packet::Kind::kMessage:
      --peer->messages_out;
      packet->accepted = false;
      End(peer, BPS_EVENT_SENT, packet->user, code);
      peer->free_messages.push_back(packet);
      break;
    case Packet::Kind::kReceive:
      break;
  }
  if (completion.error != 0) MarkFailed(peer, BPS_UNAVAILABLE, "broke off: " + completion.detail);
}

// Nothing is lost with a Hello: it is said again. A provider may take one for a connection that it is about to replace.
void DatagramTransport::HandleLostHello(DatagramPeer* peer, const std::string& detail) {
  ++peer->hellos_failed;
  peer->hello_failure = detail;
  if (now_ >= peer->patient_until) MarkFailed(peer, BPS_UNAVAILABLE, "broke off: " + detail + "; " + peer->Greetings());
}

void DatagramTransport::HandleReceive(Packet* receive, size_t size) {
  const std::byte* buffer = receive->pool->at(receive->buffer);
  PacketHeader header{};
  if (size >= sizeof header) std::memcpy(&header, buffer, sizeof header);
  if (header.kind == PacketHeader::kHello && size == sizeof(HelloPacket)) {
    HelloPacket hello;
    std::memcpy(&hello, buffer, sizeof hello);
    HandleHello(hello);
    return Repost(receive);
  }
  DatagramPeer* peer = FindPeer(header.sender);
  // What does not carry the token is of another life, or of no known peer.
  if (peer == nullptr || peer->state == PeerState::kDown || header.token != peer->own_token) return Repost(receive);
  peer->heard = true;
  peer->progress = now_;
  if (header.kind == PacketHeader::kMessage && size > sizeof header) {
    receive->size = size - sizeof header;
    return HandleMessage(peer, receive);
  }
  PieceHeader piece;
  if (header.kind == PacketHeader::kPiece && size >= sizeof piece) {
    std::memcpy(&piece, buffer, sizeof piece);
    HandlePiece(peer, piece, buffer + sizeof piece, size - sizeof piece);
  } else {
    MarkFailed(peer, BPS_UNAVAILABLE, "sent what is no packet of this transport (" + std::to_string(size) + " bytes)");
  }
  Repost(receive);
}

void DatagramTransport::HandleHello(const HelloPacket& hello) {
  DatagramPeer* peer = FindPeer(hello.header.sender);
  if (peer == nullptr || peer->state == PeerState::kDown) return;  // it says hello again
  if (hello.job_key != job_key_ || hello.receiver_nonce != nonce_ || hello.sender_nonce != peer->nonce ||
      hello.header.token == 0 || (peer->its_token != 0 && peer->its_token != hello.header.token)) {
    BPS_TRANSPORT_LOG(host_, WARNING,
                      "refused a greeting that claims to be " + peer->who +
                          ", but is not of the process and the job we were told about");
    return;
  }
  peer->its_token = hello.header.token;
  peer->its_tag = hello.tag;
  if (peer->state == PeerState::kConnecting) {
    peer->state = PeerState::kConnected;
    peer->progress = now_;
  }
  if ((hello.known & HelloPacket::kHeard) != 0) peer->heard = true;
  if ((hello.known & HelloPacket::kSure) == 0) peer->owes_hello = true;
}

void DatagramTransport::HandleMessage(DatagramPeer* peer, Packet* receive) {
  PacketHeader header;
  std::memcpy(&header, receive->pool->at(receive->buffer), sizeof header);
  if (header.number != peer->expected) {
    if (!peer->early.try_emplace(header.number, receive).second) Repost(receive);
    return;
  }
  Deliver(peer, receive);
  for (auto next = peer->early.find(peer->expected); next != peer->early.end();
       next = peer->early.find(peer->expected)) {
    Packet* waited = next->second;
    peer->early.erase(next);
    Deliver(peer, waited);
  }
}

void DatagramTransport::Deliver(DatagramPeer* peer, Packet* receive) {
  ++peer->expected;
  bps_event event = Event(BPS_EVENT_MESSAGE, peer->number);
  event.data = receive->pool->at(receive->buffer) + sizeof(PacketHeader);
  event.size = receive->size;
  event.lease = receive->user;
  receive->leased = true;
  receive->sender = peer->number;
  ++peer->leases;
  events_.push_back(event);
}

void DatagramTransport::HandlePiece(DatagramPeer* peer, const PieceHeader& piece, const std::byte* data, size_t size) {
  const uint32_t number = piece.header.number;
  if (piece.total == kGivenUp) {
    peer->incoming.erase(number);
    return;
  }
  IncomingWrite& write = peer->incoming.try_emplace(number, IncomingWrite{piece.total, false}).first->second;
  if (size > write.missing || peer->incoming.size() > kMostIncoming) {
    return MarkFailed(peer, BPS_UNAVAILABLE, "sent more pieces of a write than belong to it");
  }
  auto grant = grants_.find(piece.key);
  if (grant == grants_.end() || grant->second.peer != peer->number ||
      !grant->second.region->HasRange(piece.offset, size)) {
    write.refused = true;  // taken back meanwhile
  } else if (size != 0) {
    std::memcpy(grant->second.region->base() + piece.offset, data, size);
  }
  write.missing -= size;
  if (write.missing != 0) return;
  if (!write.refused) {
    bps_event event = Event(BPS_EVENT_IMMEDIATE, peer->number);
    event.immediate = piece.header.immediate;
    events_.push_back(event);
  }
  peer->incoming.erase(number);
}

void DatagramTransport::HandleImmediate(uint32_t data) {
  bps_event event = Event(BPS_EVENT_IMMEDIATE, BPS_PEER_UNKNOWN);
  event.immediate = data & ((1u << kTagShift) - 1);
  if (const uint32_t tag = data >> kTagShift; tag != kNoTag) {
    auto peer = by_tag_.find(tag);
    DatagramPeer* known = peer == by_tag_.end() ? nullptr : FindPeer(peer->second);
    if (known == nullptr || known->state == PeerState::kDown) return;  // late
    known->progress = now_;
    event.peer = known->number;
  }
  events_.push_back(event);
}

void DatagramTransport::Release(uint64_t lease) {
  if (lease >= receives_.size() || !receives_[lease]->leased) {
    BPS_TRANSPORT_LOG(host_, ERROR, "release of a message that is not on loan");
    return;
  }
  Packet* receive = receives_[lease].get();
  DatagramPeer* peer = FindPeer(receive->sender);
  if (auto departed = departed_.find(receive->sender); departed != departed_.end()) peer = departed->second.get();
  if (peer != nullptr) --peer->leases;
  Repost(receive);
  Forget(receive->sender);
}

}  // namespace byteps::fabric
