#include "transport_plugins/libfabric/datagram_transport.h"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>

#include "transport_plugins/common/peer_name.h"
#include "transport_plugins/libfabric/address.h"
#include "transport_plugins/libfabric/event.h"
#include "transport_plugins/libfabric/fabric_library.h"

namespace byteps::fabric {
namespace {

constexpr uint64_t kMaxTransfer = uint64_t{1} << 32;
// Buffers for pieces of writes: what is under way to one peer of a write that travels as messages.
constexpr uint32_t kPieces = 32;
// How long unreg lets the device's writes that use the memory come to their end.
constexpr std::chrono::milliseconds kUnregPatience{200};
constexpr std::chrono::milliseconds kTimeCheckInterval{10};
constexpr std::chrono::milliseconds kBacklogInterval{1};
constexpr std::chrono::milliseconds kFirstHello{10}, kLastHello{200};
// How long a Hello may fail and is said again, where BYTEPS_PEER_TIMEOUT is for ever.
constexpr std::chrono::seconds kHelloPatience{30};
Region* Unwrap(bps_region* region) { return reinterpret_cast<Region*>(region); }

}  // namespace

DatagramTransport::DatagramTransport(const transports::Host& host, std::unique_ptr<DatagramEndpoint> endpoint,
                                     std::unique_ptr<DatagramWire> wire, uint64_t job_key)
    : Transport(host),
      job_key_(job_key),
      peer_timeout_(host.PeerTimeout()),
      endpoint_(std::move(endpoint)),
      other_wire_(std::move(wire)),
      wire_(other_wire_ == nullptr ? *endpoint_ : *other_wire_),
      direct_(endpoint_->WritesInHardware()),
      nonce_(RandomNumber()),
      now_(Clock::now()),
      checked_(now_) {
  for (uint32_t tag = 0; tag < kNoTag; ++tag) free_tags_.push_back(tag);
}

DatagramTransport::~DatagramTransport() { endpoint_->Close(); }

void DatagramTransport::Caps(bps_transport_caps* out) const {
  bps_transport_caps caps{};
  caps.struct_size = out->struct_size;
  if (endpoint_->wait_fd() >= 0) caps.flags |= BPS_TRANSPORT_WAIT_FD;
  // What travels as messages is copied, and its keys are ours.
  if (!direct_) caps.flags |= BPS_TRANSPORT_LOCAL_ANY | BPS_TRANSPORT_CHEAP_REG | BPS_TRANSPORT_REG_ADDRESSES;
  if (direct_ && endpoint_->memory().RegistersDeviceMemory()) caps.flags |= BPS_TRANSPORT_CUDA;
  caps.immediate_bits = direct_ ? kTagShift : 32;
  caps.max_message = kMaxMessage;
  caps.receive_pool = kReceivePool;
  caps.tx_depth = endpoint_->provider().depth;
  caps.key_size = sizeof(Key);
  caps.max_transfer =
      direct_ ? std::min<uint64_t>(endpoint_->info().ep_attr->max_msg_size, kMaxTransfer) : kMaxTransfer;
  caps.alignment = 1;
  caps.provider = endpoint_->name().c_str();
  std::memcpy(out, &caps, std::min(out->struct_size, sizeof caps));
}

void DatagramTransport::WriteAddress(void* out, size_t* size) const {
  fabric::WriteAddress({Address::kDatagram, nonce_, endpoint_->address()}, out, size);
}

// ---- Peers ----

DatagramPeer* DatagramTransport::FindPeer(bps_peer number) {
  auto peer = peers_.find(number);
  return peer == peers_.end() ? nullptr : peer->second.get();
}

int32_t DatagramTransport::Connect(const bps_connect_args& args, std::string* reason) {
  const std::string who = "peer " + std::to_string(args.peer);
  const std::vector<Address> addresses = ParseAddresses(Address::kDatagram, args.address, args.address_size);
  if (addresses.size() != 1 || addresses.front().provided.size() != endpoint_->address().size()) {
    *reason = "the address of " + who + " is none of transport " + endpoint_->provider().name;
    return BPS_INVALID_ARGUMENT;
  }
  const Address& address = addresses.front();
  if (address.nonce == nonce_) {
    *reason = who + " is this endpoint itself";
    return BPS_INVALID_ARGUMENT;
  }
  if (FindPeer(args.peer) != nullptr || departed_.count(args.peer) != 0) {
    *reason = "there is a " + who + " already";
    return BPS_ALREADY_EXISTS;
  }
  auto made = std::make_unique<DatagramPeer>(args, endpoint_->provider().depth, kPieces);
  DatagramPeer* peer = made.get();
  peer->nonce = address.nonce;
  peer->calls = nonce_ < peer->nonce;
  peer->own_token = RandomNumber();
  peer->who = transports::PeerName(args) + " at " + endpoint_->Print(address.provided);
  BPS_TRANSPORT_LOG(host_, DEBUG, "connecting to " + peer->who);
  peer->progress = Clock::now();
  peer->patient_until = peer->progress + (peer_timeout_.count() == 0 ? kHelloPatience : peer_timeout_);
  const MemoryDomain memory = endpoint_->memory();
  if (memory.RegistersLocalMemory()) {
    if (const int code = peer->buffers.Register(memory.get(), FI_SEND, memory.RandomKey()); code != 0) {
      *reason = "cannot register the buffers of " + who + ": " + ErrorText(code);
      return BPS_RESOURCE_EXHAUSTED;
    }
  }
  if (receive_pools_.size() <= peers_.size()) AddReceives();
  peer->own_tag = kNoTag;
  if (!free_tags_.empty()) {
    peer->own_tag = free_tags_.front();
    free_tags_.pop_front();
    by_tag_[peer->own_tag] = peer->number;
  }
  peers_.emplace(args.peer, std::move(made));
  if (const int code = endpoint_->Insert(address.provided, &peer->address); code != 0) {
    MarkFailed(peer, BPS_UNAVAILABLE, "has an address that cannot be used: " + ErrorText(code));
    return BPS_OK;
  }
  SendHello(peer);
  return BPS_OK;
}

bool DatagramTransport::WantsHello(const DatagramPeer& peer) const {
  if (peer.state == PeerState::kDown || peer.failure_code != BPS_OK || peer.hello_out) return false;
  const bool speaks = peer.calls || peer.its_token != 0;
  return peer.owes_hello || (speaks && !peer.heard);
}

void DatagramTransport::SendHello(DatagramPeer* peer) {
  if (!WantsHello(*peer) || (!peer->owes_hello && Clock::now() < peer->next_hello)) return;
  HelloPacket hello{};
  hello.header = {PacketHeader::kHello, peer->local_id, peer->own_token, 0, 0};
  hello.job_key = job_key_;
  hello.sender_nonce = nonce_;
  hello.receiver_nonce = peer->nonce;
  hello.known = (peer->its_token != 0 ? HelloPacket::kHeard : 0) | (peer->heard ? HelloPacket::kSure : 0);
  hello.tag = peer->own_tag;
  std::memcpy(peer->buffers.at(peer->hello.buffer), &hello, sizeof hello);
  peer->hello.size = sizeof hello;
  if (!Give(peer, &peer->hello)) {
    ++peer->hellos_refused;
    return;
  }
  ++peer->hellos_given;
  peer->hello_out = true;
  peer->owes_hello = false;
  const auto pause = std::clamp<Clock::duration>(2 * (Clock::now() - peer->progress), kFirstHello, kLastHello);
  peer->next_hello = Clock::now() + pause;
}

int32_t DatagramTransport::Disconnect(bps_peer number) {
  DatagramPeer* peer = FindPeer(number);
  if (peer == nullptr) return BPS_NOT_FOUND;
  TakeDown(peer, BPS_CANCELLED);
  failed_peers_.erase(std::remove(failed_peers_.begin(), failed_peers_.end(), peer), failed_peers_.end());
  events_.push_back(Event(BPS_EVENT_DISCONNECTED, number));
  departed_.insert(peers_.extract(number));
  Forget(number);
  return BPS_OK;
}

void DatagramTransport::Forget(bps_peer number) {
  auto departed = departed_.find(number);
  if (departed != departed_.end() && !departed->second->held()) departed_.erase(departed);
}

// ---- Failure ----

void DatagramTransport::MarkFailed(DatagramPeer* peer, int32_t code, const std::string& cause) {
  if (peer->failure_code != BPS_OK || peer->state == PeerState::kDown) return;
  peer->failure_code = code;
  peer->cause = cause;
  failed_peers_.push_back(peer);
}

void DatagramTransport::ReportFailedPeers() {
  while (!failed_peers_.empty()) {
    DatagramPeer* peer = failed_peers_.back();
    failed_peers_.pop_back();
    BPS_TRANSPORT_LOG(host_, INFO, peer->who + " " + peer->cause);
    TakeDown(peer, peer->failure_code);
    bps_event& event = events_.emplace_back(Event(BPS_EVENT_PEER_DOWN, peer->number, peer->failure_code));
    reasons_.Attach(&event, peer->cause);  // the peer may be gone when it is read
  }
}

void DatagramTransport::End(DatagramPeer* peer, uint32_t type, uint64_t user, int32_t code) {
  events_.push_back(Event(type, peer->number, code, user));
}

void DatagramTransport::TakeDown(DatagramPeer* peer, int32_t code) {
  if (peer->state == PeerState::kDown) return;
  Drain();  // what has come already counts
  peer->state = PeerState::kDown;
  Withdraw(peer->number);
  if (direct_) Drain();
  for (const auto& packet : peer->packets) {
    if (!packet->accepted) continue;
    packet->accepted = false;
    End(peer, packet->kind == Packet::Kind::kWrite ? BPS_EVENT_WRITTEN : BPS_EVENT_SENT, packet->user, code);
  }
  for (const PiecedWrite& write : peer->writes) {
    if (!write.given_up) End(peer, BPS_EVENT_WRITTEN, write.user, code);
  }
  peer->waiting.clear();
  peer->writes.clear();
  peer->direct_writes.clear();
  peer->messages_out = peer->writes_out = peer->pieces_out = 0;
  for (auto& [number, receive] : peer->early) Repost(receive);
  peer->early.clear();
  peer->incoming.clear();
  if (by_tag_.erase(peer->own_tag) != 0) free_tags_.push_back(peer->own_tag);
}

void DatagramTransport::Erase(Granted::iterator granted) {
  grants_.erase(granted->second);
  granted_.erase(granted);
}

void DatagramTransport::Withdraw(bps_peer peer) {
  for (auto& [key, region] : regions_) region->Withdraw(peer);
  for (auto at = granted_.begin(); at != granted_.end();) {
    const auto next = std::next(at);
    if (at->first.second == peer) Erase(at);
    at = next;
  }
}

void DatagramTransport::Withdraw(Region* region) {
  region->WithdrawAll();
  for (auto at = granted_.lower_bound({region, 0}); at != granted_.end() && at->first.first == region;) {
    const auto next = std::next(at);
    Erase(at);
    at = next;
  }
}

void DatagramTransport::CheckTime() {
  for (auto& [number, peer] : peers_) {
    if (peer->state == PeerState::kDown) continue;
    SendHello(peer.get());
    Flush(peer.get());
  }
  if (peer_timeout_.count() == 0 || now_ - checked_ < kTimeCheckInterval) return;
  checked_ = now_;
  for (auto& [number, peer] : peers_) {
    if (peer->state == PeerState::kDown || peer->busy() == 0 || now_ - peer->progress < peer_timeout_) continue;
    const bool connecting = peer->state == PeerState::kConnecting;
    MarkFailed(peer.get(), BPS_UNAVAILABLE,
               std::string(connecting ? "did not answer" : "took nothing") + " for " +
                   std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(peer_timeout_).count()) +
                   " ms (BYTEPS_PEER_TIMEOUT)" + (connecting ? ": " + peer->Greetings() : ""));
  }
}

// ---- Memory ----

int32_t DatagramTransport::Reg(void* base, size_t size, bps_region** out, std::string* reason) {
  if (base == nullptr || size == 0) {
    *reason = "a region needs an address and a size";
    return BPS_INVALID_ARGUMENT;
  }
  return Keep(std::make_unique<Region>(endpoint_->memory(), base, size), out, reason);
}

int32_t DatagramTransport::RegDevice(const bps_device_memory& memory, bps_region** out, std::string* reason) {
  if (!direct_ || !endpoint_->memory().RegistersDeviceMemory()) return Transport::RegDevice(memory, out, reason);
  if (memory.base == nullptr || memory.size == 0 || memory.type != BPS_CUDA || memory.id < 0) {
    *reason = "a region of a GPU needs an address, a size and the number of the GPU";
    return BPS_INVALID_ARGUMENT;
  }
  return Keep(std::make_unique<Region>(endpoint_->memory(), memory.base, memory.size, DeviceMemory::Of(memory)), out,
              reason);
}

int32_t DatagramTransport::Keep(std::unique_ptr<Region> region, bps_region** out, std::string* reason) {
  if (direct_ && endpoint_->memory().RegistersLocalMemory()) {
    if (const int code = region->RegisterLocal(); code != 0) {
      *reason = ErrorText(code);
      return BPS_RESOURCE_EXHAUSTED;
    }
  }
  *out = reinterpret_cast<bps_region*>(region.get());
  regions_.emplace(region.get(), std::move(region));
  return BPS_OK;
}

void DatagramTransport::Unreg(bps_region* handle) {
  Region* region = Unwrap(handle);
  Drain();
  // The fence of this memory: pieces find no key, the device finds no registration.
  Withdraw(region);
  std::vector<DatagramPeer*> busy;
  for (auto& [number, peer] : peers_) {
    for (PiecedWrite& write : peer->writes) {
      if (write.region != region || write.given_up) continue;
      End(peer.get(), BPS_EVENT_WRITTEN, write.user, BPS_CANCELLED);
      write.given_up = true;
      write.region = nullptr;
    }
    auto unsent = [&](Packet* packet) { return packet->kind == Packet::Kind::kWrite && packet->region == region; };
    for (Packet* packet : peer->waiting) {
      if (!unsent(packet)) continue;
      End(peer.get(), BPS_EVENT_WRITTEN, packet->user, BPS_CANCELLED);
      packet->accepted = false;
      --peer->writes_out;
      peer->free_messages.push_back(packet);
    }
    peer->waiting.erase(std::remove_if(peer->waiting.begin(), peer->waiting.end(), unsent), peer->waiting.end());
    if (!peer->direct_writes.empty()) busy.push_back(peer.get());
  }
  auto uses = [region](DatagramPeer* peer) {
    return std::any_of(peer->direct_writes.begin(), peer->direct_writes.end(),
                       [region](Packet* packet) { return packet->region == region; });
  };
  const Clock::time_point deadline = Clock::now() + kUnregPatience;
  while (std::any_of(busy.begin(), busy.end(), uses) && Clock::now() < deadline) Progress();
  for (DatagramPeer* peer : busy) {
    if (uses(peer))
      MarkFailed(peer, BPS_CANCELLED, "was cut off: the device was still reading memory that was given back");
  }
  ReportFailedPeers();
  regions_.erase(region);
}

int32_t DatagramTransport::ExportKey(bps_region* handle, bps_peer number, void* out) {
  Region* region = Unwrap(handle);
  DatagramPeer* peer = FindPeer(number);
  if (peer == nullptr || peer->state == PeerState::kDown) return BPS_UNAVAILABLE;
  Key key{0, 0, region->size()};
  if (direct_) {
    if (region->GrantTo(number, &key) != 0) return BPS_RESOURCE_EXHAUSTED;
  } else {
    const auto [granted, fresh] = granted_.try_emplace({region, number}, 0);
    while (fresh && !grants_.try_emplace(granted->second = RandomNumber(), Grant{region, number}).second) {
    }
    key.key = granted->second;
  }
  std::memcpy(out, &key, sizeof key);
  return BPS_OK;
}

// ---- Outgoing ----

int32_t DatagramTransport::Begin(bps_peer number, DatagramPeer** peer) {
  *peer = FindPeer(number);
  if (*peer == nullptr || (*peer)->state == PeerState::kDown || (*peer)->failure_code != BPS_OK) return BPS_UNAVAILABLE;
  if ((*peer)->busy() == 0) (*peer)->progress = Clock::now();
  return BPS_OK;
}

int32_t DatagramTransport::PostSend(bps_peer number, const void* data, size_t size, uint64_t user) {
  if (size == 0 || size > kMaxMessage) return BPS_INVALID_ARGUMENT;
  DatagramPeer* peer = nullptr;
  if (const int32_t code = Begin(number, &peer); code != BPS_OK) return code;
  if (peer->free_messages.empty()) return BPS_TRANSPORT_AGAIN;
  Packet* packet = peer->free_messages.back();
  peer->free_messages.pop_back();
  packet->kind = Packet::Kind::kMessage;
  packet->user = user;
  packet->accepted = true;
  // Sender and token are filled in when it leaves: the token may not be known yet.
  const PacketHeader header{PacketHeader::kMessage, peer->local_id, 0, peer->next_message++, 0};
  std::byte* buffer = peer->buffers.at(packet->buffer);
  std::memcpy(buffer, &header, sizeof header);
  std::memcpy(buffer + sizeof header, data, size);
  packet->size = sizeof header + size;
  ++peer->messages_out;
  peer->waiting.push_back(packet);
  Flush(peer);
  return BPS_OK;
}

int32_t DatagramTransport::PostWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to,
                                     uint32_t immediate, uint64_t user) {
  Key key;
  if (to.key_size != sizeof key || size > kMaxTransfer) return BPS_INVALID_ARGUMENT;
  std::memcpy(&key, to.key, sizeof key);
  if (to.offset > key.size || size > key.size - to.offset) return BPS_OUT_OF_RANGE;
  Region* region = Unwrap(from.region);
  if (region == nullptr ? direct_ && size != 0 : !region->Contains(from.base, size)) return BPS_INVALID_ARGUMENT;
  DatagramPeer* peer = nullptr;
  if (const int32_t code = Begin(number, &peer); code != BPS_OK) return code;
  if (!direct_) {
    if (peer->writes.size() >= endpoint_->provider().depth) return BPS_TRANSPORT_AGAIN;
    peer->writes.push_back({user, static_cast<const std::byte*>(from.base), size, 0, region, key.key, to.offset,
                            peer->next_write++, immediate, false});
  } else {
    if (peer->free_messages.empty()) return BPS_TRANSPORT_AGAIN;
    Packet* packet = peer->free_messages.back();
    peer->free_messages.pop_back();
    packet->kind = Packet::Kind::kWrite;
    packet->user = user;
    packet->accepted = true;
    packet->data = from.base;
    packet->size = size;
    packet->region = region;
    packet->target = {key.base + to.offset, key.key};
    packet->immediate = immediate & ((1u << kTagShift) - 1);
    ++peer->writes_out;
    peer->waiting.push_back(packet);
  }
  Flush(peer);
  return BPS_OK;
}

bool DatagramTransport::Give(DatagramPeer* peer, Packet* packet) {
  int code = 0;
  if (packet->kind == Packet::Kind::kWrite) {
    void* descriptor = packet->region == nullptr ? nullptr : packet->region->descriptor();
    code = wire_.Write(peer->address, packet->data, packet->size, descriptor,
                       packet->immediate | peer->its_tag << kTagShift, packet->target, &packet->scratch);
  } else {
    std::byte* buffer = peer->buffers.at(packet->buffer);
    if (packet->kind != Packet::Kind::kHello) {
      std::memcpy(buffer + offsetof(PacketHeader, token), &peer->its_token, sizeof peer->its_token);
    }
    code = wire_.Send(peer->address, buffer, packet->size, peer->buffers.descriptor(), &packet->scratch);
  }
  if (code == -FI_EAGAIN) return false;
  if (code != 0) {
    MarkFailed(peer, BPS_UNAVAILABLE, "takes nothing any more: " + ErrorText(code));
    return false;
  }
  ++peer->with_provider;
  if (packet->kind == Packet::Kind::kWrite) peer->direct_writes.push_back(packet);
  return true;
}

void DatagramTransport::Flush(DatagramPeer* peer) {
  if (peer->state != PeerState::kConnected || peer->failure_code != BPS_OK) return;
  while (!peer->waiting.empty()) {
    if (!Give(peer, peer->waiting.front())) return;
    peer->waiting.pop_front();
  }
  CutPieces(peer);
}

void DatagramTransport::CutPieces(DatagramPeer* peer) {
  while (!peer->writes.empty() && !peer->free_pieces.empty() && peer->waiting.empty()) {
    PiecedWrite& write = peer->writes.front();
    if (write.given_up && write.done == 0) {
      peer->writes.pop_front();
      continue;
    }
    Packet* packet = peer->free_pieces.back();
    peer->free_pieces.pop_back();
    const size_t size = write.given_up ? 0 : std::min<size_t>(write.size - write.done, kMaxMessage);
    const PieceHeader header{{PacketHeader::kPiece, peer->local_id, 0, write.number, write.immediate},
                             write.key,
                             write.offset + write.done,
                             write.given_up ? kGivenUp : write.size};
    std::byte* buffer = peer->buffers.at(packet->buffer);
    std::memcpy(buffer, &header, sizeof header);
    if (size != 0) std::memcpy(buffer + sizeof header, write.data + write.done, size);
    packet->size = sizeof header + size;
    write.done += size;
    ++peer->pieces_out;
    if (write.given_up || write.done == write.size) {
      // Copied to the end: the memory is its owner's again.
      if (!write.given_up) End(peer, BPS_EVENT_WRITTEN, write.user, BPS_OK);
      peer->writes.pop_front();
    }
    if (!Give(peer, packet)) peer->waiting.push_back(packet);
    if (peer->failure_code != BPS_OK) return;
  }
}

int32_t DatagramTransport::Arm() {
  if (!events_.empty() || !failed_peers_.empty() || !wire_.Quiet()) return BPS_TRANSPORT_AGAIN;
  Clock::time_point wake = kNever;
  const Clock::time_point now = Clock::now();
  if (!unposted_.empty()) wake = now + kBacklogInterval;
  for (auto& [number, peer] : peers_) {
    if (peer->state == PeerState::kDown) continue;
    if (peer->owes_hello) wake = std::min(wake, now + kBacklogInterval);
    if (WantsHello(*peer)) wake = std::min(wake, std::max(peer->next_hello, now + kBacklogInterval));
    // Nothing tells when a provider that refused something takes it.
    if (!peer->waiting.empty() && peer->state == PeerState::kConnected) wake = std::min(wake, now + kBacklogInterval);
    if (peer->busy() != 0 && peer_timeout_.count() != 0) wake = std::min(wake, peer->progress + peer_timeout_);
  }
  return endpoint_->Arm(wake) ? BPS_OK : BPS_TRANSPORT_AGAIN;
}

}  // namespace byteps::fabric
