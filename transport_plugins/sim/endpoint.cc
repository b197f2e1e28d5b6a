#include "transport_plugins/sim/endpoint.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "abi/byteps.h"

#ifndef BPS_PEER_UNKNOWN
#define BPS_PEER_UNKNOWN 0xffffffffu
#endif

namespace byteps::sim {
namespace {

constexpr Time kFirstBackoff = kMicrosecond;

constexpr Time kLastBackoff = 10 * kMillisecond;
uint64_t Checksum(const std::byte* data, size_t size) {
  uint64_t hash = size;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  for (; size > 0; ++data, --size) hash = (hash ^ static_cast<uint64_t>(*data)) * 0x100000001b3;
  return hash;
}

bool Overlap(const std::byte* a, size_t a_size, const std::byte* b, size_t b_size) {
  return a < b + b_size && b < a + a_size;
}

Time TransferTime(size_t bytes, uint64_t bytes_per_second) {
  return bytes_per_second == 0
             ? 0
             : static_cast<Time>(static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_second));
}

}  // namespace

// ---- Endpoint: life -------------------------------------------------------------------------------------------------

Endpoint::Endpoint(World* world, EndpointMap* endpoints, std::string node, EndpointOptions options, uint64_t id)
    : world_(world),
      endpoints_(endpoints),
      node_(std::move(node)),
      options_(std::move(options)),
      id_(id),
      nic_(options_.nic.empty() ? &own_nic_ : world->SharedNic(options_.nic)) {
  if ((options_.flags & BPS_TRANSPORT_WAIT_FD) != 0) wait_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

Endpoint::~Endpoint() {
  if (wait_fd_ >= 0) ::close(wait_fd_);
}

std::string Endpoint::Name() const { return "endpoint " + std::to_string(id_) + " of " + node_; }

void Endpoint::Violation(const std::string& what) const { world_->Violation(Name() + ": " + what); }

void Endpoint::Close() {
  if (!dead_) {
    if (!regions_.empty()) {
      Violation("closed with " + std::to_string(regions_.size()) + " region(s) still registered");
    }
    // Messages that were never handed out are not to be released.
    const auto waiting = static_cast<size_t>(std::count_if(
        queue_.begin(), queue_.end(), [](const auto& queued) { return queued.event.type == BPS_EVENT_MESSAGE; }));
    if (leases_.size() > waiting) {
      Violation("closed with " + std::to_string(leases_.size() - waiting) + " message(s) not released (leaked leases)");
    }
  }
  endpoints_->Close(id_);  // destroys *this
}

void Endpoint::Die() {
  dead_ = true;
  queue_.clear();
  operations_.clear();
  buffered_.clear();
}

void Endpoint::Wake() {
  if (wait_fd_ >= 0) {
    const uint64_t one = 1;
    if (::write(wait_fd_, &one, sizeof one) < 0) Violation("its wait_fd was closed by other code");
  }
  if (options_.wake) options_.wake();
}

void Endpoint::Push(const bps_event& event, uint64_t operation) {
  if (dead_) return;
  queue_.push_back({event, operation});
  Wake();
}

// ---- Endpoint: peers ------------------------------------------------------------------------------------------------

int32_t Endpoint::Address(void* out, size_t* size) const {
  const std::string address = "sim:" + std::to_string(id_) + ":" + node_;
  std::memcpy(out, address.data(), address.size());
  *size = address.size();
  return BPS_OK;
}

int32_t Endpoint::Connect(const bps_connect_args& args) {
  const std::string address(static_cast<const char*>(args.address), args.address_size);
  unsigned long long remote = 0;
  int prefix = 0;
  if (std::sscanf(address.c_str(), "sim:%llu:%n", &remote, &prefix) != 1 || prefix == 0) return BPS_INVALID_ARGUMENT;
  if (peers_.count(args.peer) != 0) {
    Violation("connect used peer number " + std::to_string(args.peer) + " twice");
    return BPS_INVALID_ARGUMENT;
  }
  Peer& peer = peers_[args.peer];
  peer.endpoint = remote;
  peer.node = address.substr(static_cast<size_t>(prefix));
  peer.local_id = args.local_id;
  const Endpoint* other = endpoints_->Find(remote);
  if ((other == nullptr || other->dead_) && !world_->DeadSilently(peer.node)) {
    peer.failed = true;
    if (!options_.down_needs_traffic) MarkFailed(args.peer);
  }
  return BPS_OK;
}

int32_t Endpoint::Disconnect(bps_peer number) {
  auto it = peers_.find(number);
  if (it == peers_.end() || it->second.state == PeerState::kDisconnecting ||
      it->second.state == PeerState::kDisconnected) {
    Violation("disconnect of peer " + std::to_string(number) + ", which is not connected");
    return BPS_INVALID_ARGUMENT;
  }
  it->second.state = PeerState::kDisconnecting;
  if (world_->random().Chance(0.5)) CancelOf(number, BPS_CANCELLED);
  world_->At(world_->now() + options_.fence, "fence", [endpoints = endpoints_, id = id_, number] {
    Endpoint* self = endpoints->Find(id);
    if (self == nullptr || self->dead_) return;
    self->CancelOf(number, BPS_CANCELLED);
    for (auto& [cookie, shown] : self->exports_) {
      if (shown.peer == number) shown.valid = false;
    }
    Peer& peer = self->peers_.at(number);
    peer.state = PeerState::kDisconnected;
    bps_event event{};
    event.type = BPS_EVENT_DISCONNECTED;
    event.peer = number;
    self->Push(event);
    Endpoint* other = endpoints->Find(peer.endpoint);
    if (other == nullptr || !other->options_.disconnect_is_heard) return;
    auto back = other->peers_.find(peer.local_id);
    if (back == other->peers_.end() || back->second.endpoint != id) return;
    back->second.failed = true;
    other->MarkFailed(peer.local_id);
  });
  return BPS_OK;
}

void Endpoint::PeerGone(uint64_t other) {
  if (dead_) return;
  for (auto& [number, peer] : peers_) {
    if (peer.endpoint != other || peer.state != PeerState::kUp) continue;
    peer.failed = true;
    const bool traffic = std::any_of(operations_.begin(), operations_.end(), [number = number](const auto& entry) {
      return entry.second.peer == number && entry.second.state != OpState::kFinished;
    });
    if (traffic || !options_.down_needs_traffic) MarkFailed(number);
  }
}

void Endpoint::MarkFailed(bps_peer number) {
  Peer& peer = peers_.at(number);
  if (peer.losing) return;
  peer.losing = true;
  world_->At(world_->NoticedAt(), "peer lost", [endpoints = endpoints_, id = id_, number] {
    Endpoint* self = endpoints->Find(id);
    if (self != nullptr && !self->dead_) self->LosePeer(number);
  });
}

void Endpoint::LosePeer(bps_peer number) {
  Peer& peer = peers_.at(number);
  if (peer.state != PeerState::kUp) return;
  peer.state = PeerState::kDown;
  CancelOf(number, world_->random().Chance(0.5) ? BPS_UNAVAILABLE : BPS_CANCELLED);
  bps_event event{};
  event.type = BPS_EVENT_PEER_DOWN;
  event.peer = number;
  event.code = BPS_UNAVAILABLE;
  Push(event);
}

void Endpoint::CancelOf(bps_peer number, int32_t code) {
  std::erase_if(buffered_, [&](const auto& entry) { return entry.second.peer == number; });
  for (auto& [id, operation] : operations_) {
    if (operation.peer == number && operation.state != OpState::kFinished) Complete(id, code);
  }
}

// ---- Endpoint: operations -------------------------------------------------------------------------------------------

int32_t Endpoint::Again() {
  ++world_->stats().again;
  // A caller that was told AGAIN polls and tries again: wake it, ever more slowly while nothing goes.
  backoff_ = std::clamp(backoff_ * 2, kFirstBackoff, kLastBackoff);
  if (!waking_) {
    waking_ = true;
    world_->At(world_->now() + backoff_, "try again", [endpoints = endpoints_, id = id_] {
      Endpoint* self = endpoints->Find(id);
      if (self == nullptr) return;
      self->waking_ = false;
      if (!self->dead_) self->Wake();
    });
  }
  return BPS_TRANSPORT_AGAIN;
}

int32_t Endpoint::Admit(const char* what, bps_peer number, Peer** out) {
  if (dead_) return BPS_UNAVAILABLE;
  auto it = peers_.find(number);
  if (it == peers_.end()) {
    Violation(std::string(what) + " to unknown peer " + std::to_string(number));
    return BPS_INVALID_ARGUMENT;
  }
  Peer& peer = it->second;
  *out = &peer;
  if (peer.state != PeerState::kUp) return BPS_UNAVAILABLE;
  if (world_->DeadSilently(peer.node)) return Again();
  if (peer.open_at < 0) peer.open_at = world_->now() + options_.first_send;
  if (world_->now() < peer.open_at) return Again();
  if (operations_.size() >= options_.tx_depth) return Again();
  if (world_->random().Chance(options_.again)) return Again();
  backoff_ = 0;
  return BPS_OK;
}

int32_t Endpoint::Start(Peer& peer, Operation operation) {
  if (peer.failed) MarkFailed(operation.peer);
  const LinkOptions& link = world_->Link(node_, peer.node);
  const size_t bytes = operation.type == BPS_EVENT_READ ? 0 : operation.size;
  const Time taken = Occupies(endpoints_->Find(peer.endpoint), bytes);
  const Time own = options_.overhead + taken;
  const bool waits = taken > 0 || options_.nic.empty();
  const Time start = std::max({world_->now(), peer.busy_until, waits ? nic_->out : 0});
  if (waits) nic_->out = start + own;
  if (taken > 0 && options_.carries) options_.carries(node_, true, start, start + own);
  // Strictly later than what left before it: what leaves in order stays in order.
  peer.busy_until = std::max(start + std::max(own, TransferTime(bytes, link.bytes_per_second)), peer.busy_until + 1);
  const uint64_t id = world_->NewId();
  const Time buffered = operation.type == BPS_EVENT_READ ? INT64_MAX : Buffered(&peer, bytes);
  operations_.emplace(id, std::move(operation));
  if (buffered < peer.busy_until) {
    world_->At(buffered, "buffer", [endpoints = endpoints_, self_id = id_, id] {
      Endpoint* self = endpoints->Find(self_id);
      if (self != nullptr) self->Buffer(id);
    });
  }
  world_->At(peer.busy_until, "leave", [endpoints = endpoints_, self_id = id_, id] {
    Endpoint* self = endpoints->Find(self_id);
    if (self != nullptr) self->Leave(id);
  });
  return BPS_OK;
}

int32_t Endpoint::PostSend(bps_peer number, const void* data, size_t size, uint64_t user) {
  if (size == 0 || size > options_.max_message) {
    Violation("post_send of " + std::to_string(size) + " bytes; a message has 1 to " +
              std::to_string(options_.max_message));
    return BPS_INVALID_ARGUMENT;
  }
  Peer* peer = nullptr;
  const int32_t code = Admit("post_send", number, &peer);
  if (code != BPS_OK) return code;
  Operation operation{.type = BPS_EVENT_SENT, .peer = number, .user = user, .size = size};
  const auto* bytes = static_cast<const std::byte*>(data);
  operation.message.assign(bytes, bytes + size);
  return Start(*peer, std::move(operation));
}

int32_t Endpoint::PostTransfer(uint32_t type, bps_peer number, const bps_local* local, size_t size,
                               const bps_remote* remote, uint32_t immediate, uint64_t user, Operation* ahead) {
  const char* what = type == BPS_EVENT_READ ? "post_read" : "post_write";
  Operation operation{.type = type, .peer = number, .user = user, .size = size};
  operation.base = static_cast<std::byte*>(local->base);
  operation.region = ToId(local->region);
  operation.offset = remote->offset;
  operation.immediate = immediate;
  operation.cookie = Cookie(remote);
  std::string wrong;
  if (local->region == nullptr) {
    if ((options_.flags & BPS_TRANSPORT_LOCAL_ANY) == 0) wrong = "local memory that is not registered";
  } else if (auto region = regions_.find(operation.region); region == regions_.end()) {
    wrong = "a local region that is not registered";
  } else if (operation.base < region->second.base ||
             operation.base + size > region->second.base + region->second.size) {
    wrong = "local memory outside its region";
  }
  if (size > options_.max_transfer) wrong = "more than max_transfer bytes";
  if (type == BPS_EVENT_WRITTEN && options_.immediate_bits < 32 && immediate >> options_.immediate_bits != 0) {
    wrong = "an immediate of more than " + std::to_string(options_.immediate_bits) + " bits";
  }
  if (reinterpret_cast<uintptr_t>(operation.base) % options_.alignment != 0 ||
      remote->offset % options_.alignment != 0) {
    wrong = "addresses that are not aligned to " + std::to_string(options_.alignment);
  }
  if (!wrong.empty()) {
    Violation(std::string(what) + " with " + wrong);
    return BPS_INVALID_ARGUMENT;
  }
  Peer* peer = nullptr;
  const int32_t code = Admit(what, number, &peer);
  if (code != BPS_OK) return code;
  if (type == BPS_EVENT_WRITTEN) {
    operation.watched = true;
    operation.checksum = Checksum(operation.base, size);
  }
  if (ahead != nullptr) Start(*peer, std::move(*ahead));
  return Start(*peer, std::move(operation));
}

int32_t Endpoint::PostSendAndWrite(bps_peer number, const void* message, size_t message_size, const bps_local* from,
                                   size_t size, const bps_remote* to, uint32_t immediate, uint64_t user) {
  if (world_->random().Chance(options_.apart) || operations_.size() + 2 > options_.tx_depth) return BPS_UNIMPLEMENTED;
  if (message_size == 0 || message_size > options_.max_message) {
    Violation("post_send_and_write with a message of " + std::to_string(message_size) + " bytes");
    return BPS_INVALID_ARGUMENT;
  }
  Operation text{.type = BPS_EVENT_SENT, .peer = number, .user = 0, .size = message_size, .untold = true};
  const auto* bytes = static_cast<const std::byte*>(message);
  text.message.assign(bytes, bytes + message_size);
  return PostTransfer(BPS_EVENT_WRITTEN, number, from, size, to, immediate, user, &text);
}

void Endpoint::Verify(const Operation& operation, const char* when) {
  if (!operation.watched || Checksum(operation.base, operation.size) == operation.checksum) return;
  Violation("the local buffer of a write to peer " + std::to_string(operation.peer) + " (user " +
            std::to_string(operation.user) + ", " + std::to_string(operation.size) +
            " bytes) was changed while the transport owned it; seen " + when);
}

Time Endpoint::Occupies(const Endpoint* other, size_t bytes) const {
  const bool inside = other != nullptr && !options_.nic.empty() && other->options_.nic == options_.nic;
  return inside ? 0 : TransferTime(bytes, options_.bytes_per_second);
}

Time Endpoint::Arrival(Peer& peer, size_t size, bool message) {
  const LinkOptions& link = world_->Link(node_, peer.node);
  Time at = world_->now() + link.latency + world_->random().Between(0, link.jitter);
  if (!message) at += world_->random().Between(0, link.reorder);
  if (Endpoint* target = endpoints_->Find(peer.endpoint); target != nullptr) {
    const Time own = target->Occupies(this, size);
    if (own > 0) {
      at = std::max(at, target->nic_->in + own);
      target->nic_->in = at;
      if (target->options_.carries) target->options_.carries(target->node_, false, at - own, at);
    }
  }
  if (message) at = std::max(at, peer.last_message + 1);
  if (link.reorder == 0) at = std::max(at, peer.last_arrival + 1);
  if (message) peer.last_message = at;
  peer.last_arrival = std::max(peer.last_arrival, at);
  return at;
}

Time Endpoint::Buffered(Peer* peer, size_t bytes) const {
  if (options_.socket_bytes == 0) return INT64_MAX;
  while (!peer->leaving.empty() && peer->leaving.front().first <= world_->now()) peer->leaving.pop_front();
  peer->leaving.emplace_back(peer->busy_until, bytes);
  size_t held = 0;
  for (const auto& [leaves, size] : peer->leaving) held += size;
  Time at = world_->now() + options_.overhead;
  for (const auto& [leaves, size] : peer->leaving) {
    if (held <= options_.socket_bytes) break;
    held -= size;
    at = leaves;
  }
  return at;
}

void Endpoint::Buffer(uint64_t id) {
  auto it = operations_.find(id);
  if (dead_ || it == operations_.end() || it->second.state != OpState::kPosted) return;
  Operation& operation = it->second;
  Verify(operation, "when its bytes were taken");
  Operation copy = operation;
  copy.watched = operation.watched = false;
  if (copy.type == BPS_EVENT_WRITTEN) copy.message.assign(operation.base, operation.base + operation.size);
  buffered_.emplace(id, std::move(copy));
  Complete(id, BPS_OK);
}

void Endpoint::Leave(uint64_t id) {
  auto held = buffered_.extract(id);
  auto it = operations_.find(id);
  if (dead_ || (held.empty() && (it == operations_.end() || it->second.state != OpState::kPosted))) return;
  Operation& operation = held.empty() ? it->second : held.mapped();
  operation.state = OpState::kUnderWay;
  Verify(operation, "when its bytes left");
  Peer& peer = peers_.at(operation.peer);
  const Time at = Arrival(peer, operation.size, operation.type == BPS_EVENT_SENT);
  const Time back = world_->Link(peer.node, node_).latency;
  Operation packet = operation;  // without what is local
  packet.watched = false;
  std::vector<std::byte> data = std::move(operation.message);
  if (operation.type == BPS_EVENT_WRITTEN && held.empty()) data.assign(operation.base, operation.base + operation.size);

  const bool before = options_.written == WrittenOrder::kBefore ||
                      (options_.written == WrittenOrder::kEither && world_->random().Chance(0.5));
  const bool early = !held.empty() || (operation.type != BPS_EVENT_READ && before);
  if (early && held.empty()) Complete(id, BPS_OK);
  const char* what = packet.type == BPS_EVENT_SENT ? "message" : packet.type == BPS_EVENT_READ ? "read" : "write";
  world_->Arrive(node_, peer.node, at, what,
                 [world = world_, endpoints = endpoints_, from = id_, node = node_, target_id = peer.endpoint,
                  target_node = peer.node, number = peer.local_id, packet = std::move(packet), data = std::move(data),
                  id, early, back]() mutable {
                   Endpoint* target = endpoints->Find(target_id);
                   if (target == nullptr || target->dead_) return;
                   bool good = true;
                   if (packet.type == BPS_EVENT_SENT) {
                     target->MessageArrives(from, number, std::move(data));
                   } else if (packet.type == BPS_EVENT_WRITTEN) {
                     target->WriteLands(from, packet, data);
                   } else {
                     bps_peer unused;
                     const std::byte* source = target->Lookup(from, packet.cookie, packet.offset, packet.size, &unused);
                     good = source != nullptr;
                     if (good) data.assign(source, source + packet.size);
                   }
                   if (early) return;
                   world->Arrive(target_node, node, world->now() + back, "acknowledgement",
                                 [endpoints, from, id, good, data = std::move(data)] {
                                   Endpoint* self = endpoints->Find(from);
                                   if (self == nullptr || self->dead_) return;
                                   auto op = self->operations_.find(id);
                                   if (op == self->operations_.end() || op->second.state == OpState::kFinished) return;
                                   if (op->second.type == BPS_EVENT_READ && good && !data.empty()) {
                                     std::memcpy(op->second.base, data.data(), data.size());
                                   }
                                   self->Complete(id, good ? BPS_OK : BPS_PERMISSION_DENIED);
                                 });
                 });
}

void Endpoint::Complete(uint64_t id, int32_t code) {
  Operation& operation = operations_.at(id);
  operation.state = OpState::kFinished;
  bps_event event{};
  event.type = operation.type;
  event.code = code;
  event.peer = operation.peer;
  event.user = operation.user;
  Push(event, id);
}

void Endpoint::MessageArrives(uint64_t from, bps_peer number, std::vector<std::byte> data) {
  auto it = peers_.find(number);
  if (it == peers_.end() || it->second.state == PeerState::kDown || it->second.state == PeerState::kDisconnected) {
    ++world_->stats().dropped_messages;
    return;
  }
  Peer& peer = it->second;
  if (peer.endpoint != from) {
    return Violation("endpoint " + std::to_string(from) + " sends under the number of peer " + std::to_string(number) +
                     ", which is endpoint " + std::to_string(peer.endpoint) + " (local_id of connect)");
  }
  if (peer.unreleased >= options_.receive_pool) {
    return Violation("peer " + std::to_string(number) + " overran the receive pool of " +
                     std::to_string(options_.receive_pool) + " messages (credits)");
  }
  ++peer.unreleased;
  ++world_->stats().messages;
  ++world_->stats().sent_messages[peer.node];
  world_->stats().bytes += data.size();
  Lease lease{number, std::make_unique<std::byte[]>(data.size()), data.size()};
  std::memcpy(lease.data.get(), data.data(), data.size());
  const uint64_t id = world_->NewId();
  bps_event event{};
  event.type = BPS_EVENT_MESSAGE;
  event.peer = number;
  event.data = lease.data.get();
  event.size = lease.size;
  event.lease = id;
  leases_.emplace(id, std::move(lease));
  Push(event);
}

bool Endpoint::WriteLands(uint64_t from, const Operation& operation, const std::vector<std::byte>& data) {
  bps_peer number = 0;
  std::byte* target = Lookup(from, operation.cookie, operation.offset, data.size(), &number);
  if (target == nullptr) {
    ++world_->stats().dropped_writes;
    return false;
  }
  if (!data.empty()) std::memcpy(target, data.data(), data.size());
  ++world_->stats().writes;
  world_->stats().bytes += data.size();
  for (auto& [id, mine] : operations_) {
    // A result that lands where its input came from: the input has arrived, its WRITTEN may be late all the same.
    if (mine.state != OpState::kPosted && mine.watched && Overlap(mine.base, mine.size, target, data.size())) {
      mine.watched = false;
    }
  }
  bps_event event{};
  event.type = BPS_EVENT_IMMEDIATE;
  event.peer = options_.immediate_names_peer ? number : BPS_PEER_UNKNOWN;
  event.immediate = operation.immediate;
  Push(event);
  return true;
}

size_t Endpoint::Poll(bps_event* events, size_t capacity) {
  if (wait_fd_ >= 0) {
    uint64_t count;
    if (::read(wait_fd_, &count, sizeof count) < 0) count = 0;  // nothing was there
  }
  size_t n = 0;
  while (n < capacity && !queue_.empty()) {
    events[n] = queue_.front().event;
    bool told = true;
    if (const uint64_t id = queue_.front().operation; id != 0) {
      auto operation = operations_.find(id);
      if (events[n].code == BPS_OK) Verify(operation->second, "when its WRITTEN was handed out");
      told = !operation->second.untold;
      operations_.erase(operation);
    }
    queue_.pop_front();
    n += told ? 1 : 0;
  }
  if (!queue_.empty()) Wake();
  return n;
}

void Endpoint::Release(uint64_t id) {
  auto lease = leases_.find(id);
  if (lease == leases_.end()) return Violation("release of a lease that is not held: " + std::to_string(id));
  --peers_.at(lease->second.peer).unreleased;
  // What still reads it reads this.
  std::memset(lease->second.data.get(), 0xdd, lease->second.size);
  leases_.erase(lease);
}

int32_t Endpoint::WaitFd() { return wait_fd_; }

int32_t Endpoint::Arm() { return queue_.empty() ? BPS_OK : BPS_TRANSPORT_AGAIN; }

void Endpoint::Caps(bps_transport_caps* caps) const {
  bps_transport_caps own{};
  own.struct_size = std::min(caps->struct_size, sizeof own);
  own.flags = options_.flags;
  own.immediate_bits = options_.immediate_bits;
  own.max_message = options_.max_message;
  own.receive_pool = options_.receive_pool;
  own.tx_depth = options_.tx_depth;
  own.key_size = options_.key_size;
  own.max_transfer = options_.max_transfer;
  own.alignment = options_.alignment;
  own.provider = options_.provider.c_str();
  std::memcpy(caps, &own, own.struct_size);
}

}  // namespace byteps::sim
