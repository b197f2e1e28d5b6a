#include "transport_plugins/libfabric/connected_transport.h"

#include <netinet/in.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport_plugins/common/peer_name.h"
#include "transport_plugins/libfabric/address.h"
#include "transport_plugins/libfabric/descriptors.h"
#include "transport_plugins/libfabric/event.h"
#include "transport_plugins/libfabric/fabric_library.h"

namespace byteps::fabric {
namespace {

constexpr uint64_t kMaxTransfer = uint64_t{1} << 32;
// How long unreg lets a transfer that uses the memory come to its end before it cuts the connection.
constexpr std::chrono::milliseconds kUnregPatience{200};
// Connection events (a lost connection, a caller) are looked at every so many rounds, and after each sleep.
constexpr uint32_t kConnectionRounds = 16;
constexpr std::chrono::milliseconds kTimeCheckInterval{10};
constexpr std::chrono::milliseconds kBacklogInterval{1};

}  // namespace

ConnectedTransport::ConnectedTransport(const transports::Host& host, std::unique_ptr<Endpoint> endpoint,
                                       uint64_t job_key)
    : Transport(host),
      job_key_(job_key),
      peer_timeout_(host.PeerTimeout()),
      endpoint_(std::move(endpoint)),
      nonce_(RandomNumber()),
      depth_(static_cast<uint32_t>(std::min<size_t>(endpoint_->info().tx_attr->size, endpoint_->provider().depth))),
      now_(Clock::now()),
      checked_(now_) {}

ConnectedTransport::~ConnectedTransport() {
  // Connections first: then nothing lands any more, and the provider forgets our buffers.
  for (auto& [number, peer] : peers_) peer->CloseConnection();
  RejectRequests();
}

void ConnectedTransport::Caps(bps_transport_caps* out) const {
  bps_transport_caps caps{};
  caps.struct_size = out->struct_size;
  caps.flags = BPS_TRANSPORT_WAIT_FD;
  if (!endpoint_->RegistersLocalMemory()) caps.flags |= BPS_TRANSPORT_LOCAL_ANY;
  if (endpoint_->provider().cheap_registration) caps.flags |= BPS_TRANSPORT_CHEAP_REG;
  if (!endpoint_->provider().locks_memory) caps.flags |= BPS_TRANSPORT_REG_ADDRESSES;
  if (endpoint_->memory().RegistersDeviceMemory()) caps.flags |= BPS_TRANSPORT_CUDA;
  caps.immediate_bits = 32;
  caps.max_message = kMaxMessage;
  caps.receive_pool = kReceivePool;
  caps.tx_depth = depth_;
  caps.key_size = sizeof(Key);
  caps.max_transfer = std::min<uint64_t>(endpoint_->info().ep_attr->max_msg_size, kMaxTransfer);
  caps.alignment = 1;
  caps.provider = endpoint_->name().c_str();
  std::memcpy(out, &caps, std::min(out->struct_size, sizeof caps));
}

void ConnectedTransport::WriteAddress(void* out, size_t* size) const {
  fabric::WriteAddress({Address::kConnected, nonce_, endpoint_->address()}, out, size);
}

// ---- Memory ----

int32_t ConnectedTransport::Reg(void* base, size_t size, bps_region** out, std::string* reason) {
  if (base == nullptr || size == 0) {
    *reason = "a region needs an address and a size";
    return BPS_INVALID_ARGUMENT;
  }
  return Keep(std::make_unique<Region>(endpoint_->memory(), base, size), out, reason);
}

int32_t ConnectedTransport::RegDevice(const bps_device_memory& memory, bps_region** out, std::string* reason) {
  if (!endpoint_->memory().RegistersDeviceMemory()) return Transport::RegDevice(memory, out, reason);
  if (memory.base == nullptr || memory.size == 0 || memory.type != BPS_CUDA || memory.id < 0) {
    *reason = "a region of a GPU needs an address, a size and the number of the GPU";
    return BPS_INVALID_ARGUMENT;
  }
  return Keep(std::make_unique<Region>(endpoint_->memory(), memory.base, memory.size, DeviceMemory::Of(memory)), out,
              reason);
}

int32_t ConnectedTransport::Keep(std::unique_ptr<Region> region, bps_region** out, std::string* reason) {
  if (endpoint_->RegistersLocalMemory()) {
    if (const int code = region->RegisterLocal(); code != 0) {
      *reason = ErrorText(code) + endpoint_->AdviceOnMemory();
      return BPS_RESOURCE_EXHAUSTED;
    }
  }
  *out = reinterpret_cast<bps_region*>(region.get());
  regions_.emplace(region.get(), std::move(region));
  return BPS_OK;
}

void ConnectedTransport::Unreg(bps_region* handle) {
  auto* region = reinterpret_cast<Region*>(handle);
  EmptyQueue();
  // From here on no write into it begins; a peer that tries is cut off by the provider.
  std::vector<std::pair<Peer*, std::vector<uint64_t>>> guests;
  for (auto& [number, peer] : peers_) {
    uint64_t key = 0;
    if (region->GrantedTo(number, &key) && !peer->incoming.empty()) guests.push_back({peer.get(), {key}});
  }
  region->WithdrawAll();
  for (auto& [number, peer] : peers_) {
    for (Operation* operation : peer->TakeWaiting(region)) End(operation, BPS_CANCELLED);
  }
  // Transfers that are half done end soon, or their connections do.
  auto busy = [&](Peer* peer) {
    if (peer->state() == PeerState::kDown) return false;
    if (peer->Uses(region)) return true;
    for (const auto& [guest, keys] : guests) {
      if (guest == peer && std::count(peer->incoming.begin(), peer->incoming.end(), keys.front()) != 0) return true;
    }
    return false;
  };
  std::vector<Peer*> open;
  for (auto& [number, peer] : peers_) {
    if (busy(peer.get())) open.push_back(peer.get());
  }
  const Clock::time_point deadline = Clock::now() + kUnregPatience;
  while (!open.empty() && Clock::now() < deadline) {
    Progress();
    open.erase(std::remove_if(open.begin(), open.end(), [&](Peer* peer) { return !busy(peer); }), open.end());
  }
  for (Peer* peer : open) {
    BPS_TRANSPORT_LOG(host_, WARNING,
                      "memory is given back while a transfer with " + peer->who + " is under way in it");
    MarkFailed(peer, BPS_CANCELLED, "was cut off: its transfer would have gone on in memory that was given back");
  }
  ReportFailedPeers();
  regions_.erase(region);
}

int32_t ConnectedTransport::ExportSameKey(bps_region* handle, bps_peer number, const void* given) {
  Peer* peer = FindPeer(number);
  if (peer == nullptr || peer->state() == PeerState::kDown) return BPS_UNAVAILABLE;
  Key wanted, key;
  std::memcpy(&wanted, given, sizeof wanted);
  const int code = reinterpret_cast<Region*>(handle)->GrantTo(number, &key, &wanted.key);
  return code == 0 && key.key == wanted.key ? BPS_OK : BPS_RESOURCE_EXHAUSTED;
}

int32_t ConnectedTransport::ExportKey(bps_region* handle, bps_peer number, void* out) {
  auto* region = reinterpret_cast<Region*>(handle);
  Peer* peer = FindPeer(number);
  if (peer == nullptr || peer->state() == PeerState::kDown) return BPS_UNAVAILABLE;
  Key key;
  if (region->GrantTo(number, &key) != 0) return BPS_RESOURCE_EXHAUSTED;
  std::memcpy(out, &key, sizeof key);
  return BPS_OK;
}

// ---- Operations ----

int32_t ConnectedTransport::Begin(bps_peer number, Completion::Kind kind, uint64_t user, Operation** operation) {
  Peer* peer = FindPeer(number);
  if (peer == nullptr || peer->state() == PeerState::kDown || peer->failure_code != BPS_OK) return BPS_UNAVAILABLE;
  if (peer->busy() == 0) peer->progress = Clock::now();
  *operation = peer->NewOperation(kind, user);
  return *operation == nullptr ? BPS_TRANSPORT_AGAIN : BPS_OK;
}

void ConnectedTransport::Enqueue(Operation* operation) {
  Peer* peer = operation->peer;
  const bool first = peer->waiting() == 0;
  peer->Enqueue(operation);
  if (!first || peer->state() != PeerState::kConnected) return;
  Flush(peer);
  if (peer->waiting() != 0) backlog_.push_back(peer);
}

int32_t ConnectedTransport::PostSend(bps_peer number, const void* data, size_t size, uint64_t user) {
  if (size == 0 || size > kMaxMessage) return BPS_INVALID_ARGUMENT;
  Operation* operation = nullptr;
  if (const int32_t code = Begin(number, Completion::Kind::kSend, user, &operation); code != BPS_OK) return code;
  Peer* peer = operation->peer;
  std::byte* buffer = peer->send_buffer(operation->buffer);
  const MessageHeader header{MessageHeader::kMessage, peer->local_id()};
  std::memcpy(buffer, &header, sizeof header);
  std::memcpy(buffer + sizeof header, data, size);
  operation->size = sizeof header + size;
  Enqueue(operation);
  return BPS_OK;
}

int32_t ConnectedTransport::CheckWrite(const bps_local& from, size_t size, const bps_remote& to) const {
  Key key;
  if (to.key_size != sizeof key || size > kMaxTransfer) return BPS_INVALID_ARGUMENT;
  std::memcpy(&key, to.key, sizeof key);
  if (to.offset > key.size || size > key.size - to.offset) return BPS_OUT_OF_RANGE;
  const auto* region = reinterpret_cast<const Region*>(from.region);
  if (region == nullptr ? endpoint_->RegistersLocalMemory() && size != 0 : !region->Contains(from.base, size)) {
    return BPS_INVALID_ARGUMENT;
  }
  return BPS_OK;
}

int32_t ConnectedTransport::PostWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to,
                                      uint32_t immediate, uint64_t user) {
  Operation* operation = nullptr;
  if (const int32_t code = BeginWrite(number, from, size, to, immediate, user, &operation); code != BPS_OK) return code;
  Enqueue(operation);
  return BPS_OK;
}

int32_t ConnectedTransport::PostSendAndWrite(bps_peer number, std::span<const std::byte> message, const bps_local& from,
                                             size_t size, const bps_remote& to, uint32_t immediate, uint64_t user) {
  // What is told apart by its completion has to be posted by itself, and what waits can be taken back by itself.
  if (!endpoint_->provider().write_outlives_registration || !endpoint_->SendsSilently()) return BPS_UNIMPLEMENTED;
  if (message.empty() || message.size() > kMaxMessage) return BPS_INVALID_ARGUMENT;
  Peer* peer = FindPeer(number);
  if (peer != nullptr && (peer->state() != PeerState::kConnected || peer->waiting() != 0)) return BPS_UNIMPLEMENTED;
  Operation* operation = nullptr;
  if (const int32_t code = BeginWrite(number, from, size, to, immediate, user, &operation); code != BPS_OK) return code;
  const Announcement announcement{{MessageHeader::kAnnouncingMessage, peer->local_id()}, operation->remote_key};
  std::byte* buffer = peer->send_buffer(operation->buffer);
  std::memcpy(buffer, &announcement, sizeof announcement);
  std::memcpy(buffer + sizeof announcement, message.data(), message.size());
  operation->message_size = sizeof announcement + message.size();
  const int code = peer->GiveAnnounced(operation);
  if (code == -FI_EAGAIN) return BPS_TRANSPORT_AGAIN;
  if (peer->waiting() != 0) backlog_.push_back(peer);
  if (code != 0) MarkFailed(peer, BPS_UNAVAILABLE, "takes nothing any more: " + ErrorText(code));
  return code == 0 || operation->announced ? BPS_OK : BPS_UNAVAILABLE;
}

int32_t ConnectedTransport::BeginWrite(bps_peer number, const bps_local& from, size_t size, const bps_remote& to,
                                       uint32_t immediate, uint64_t user, Operation** begun) {
  if (const int32_t code = CheckWrite(from, size, to); code != BPS_OK) return code;
  Key key;
  std::memcpy(&key, to.key, sizeof key);
  Operation* operation = nullptr;
  if (const int32_t code = Begin(number, Completion::Kind::kWrite, user, &operation); code != BPS_OK) return code;
  operation->data = from.base;
  operation->size = size;
  operation->region = reinterpret_cast<Region*>(from.region);
  operation->remote_address = key.base + to.offset;
  operation->remote_key = key.key;
  operation->immediate = immediate;
  if (endpoint_->WideImmediates()) operation->immediate |= uint64_t{operation->peer->local_id()} << 32;
  *begun = operation;
  return BPS_OK;
}

void ConnectedTransport::End(Operation* operation, int32_t code) {
  const uint32_t type = operation->kind == Completion::Kind::kSend ? BPS_EVENT_SENT : BPS_EVENT_WRITTEN;
  events_.push_back(Event(type, operation->peer->number(), code, operation->user));
  operation->peer->Retire(operation);
}

// ---- Progress ----

size_t ConnectedTransport::Poll(bps_event* events, size_t capacity) {
  if (events_.empty()) reasons_.Forget();
  if (events_.size() < capacity) Progress();
  const size_t count = std::min(capacity, events_.size());
  std::copy_n(events_.begin(), count, events);
  events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

void ConnectedTransport::Progress() {
  now_ = Clock::now();
  const bool came = FetchCompletions() > 0;
  if (connecting_ != 0 || (slept_ && !came) || ++rounds_ % kConnectionRounds == 0) DrainConnections();
  FlushBacklog();
  CheckTime();
  do {
    MarkFlushedPeersFailed();
    ReportFailedPeers();
  } while (!flushed_.empty());
}

void ConnectedTransport::EmptyQueue() {
  while (FetchCompletions() > 0) {
  }
}

size_t ConnectedTransport::FetchCompletions() {
  fi_cq_data_entry entries[64];
  const ssize_t count = fi_cq_read(endpoint_->cq(), entries, std::size(entries));
  if (count == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(endpoint_->cq(), &error, 0) < 0) return 0;
    HandleError(error);
    return 1;
  }
  for (ssize_t i = 0; i < count; ++i) HandleCompletion(entries[i]);
  return count > 0 ? static_cast<size_t>(count) : 0;
}

void ConnectedTransport::HandleCompletion(const fi_cq_data_entry& entry) {
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
    auto* taken = endpoint_->provider().immediate_takes_receive ? static_cast<Receive*>(entry.op_context) : nullptr;
    return HandleImmediate(entry.data, taken);
  }
  auto* completion = static_cast<Completion*>(entry.op_context);
  if (completion == nullptr || completion->peer->state() == PeerState::kDown) return;
  completion->peer->progress = now_;
  if (completion->kind == Completion::Kind::kReceive) {
    return HandleReceive(static_cast<Receive*>(completion), entry.len);
  }
  End(static_cast<Operation*>(completion), BPS_OK);
}

void ConnectedTransport::HandleError(const fi_cq_err_entry& error) {
  auto* completion = static_cast<Completion*>(error.op_context);
  if (completion == nullptr || !completion->peer->attached()) return;  // see TakeDown: ended there
  if (error.err == FI_ECANCELED) {
    flushed_.push_back(completion->peer->number());
  } else {
    char text[256] = "";
    const char* detail = fi_cq_strerror(endpoint_->cq(), error.prov_errno, error.err_data, text, sizeof text);
    MarkFailed(completion->peer, BPS_UNAVAILABLE,
               "broke off: " + ErrorText(error.err) + " (" + (detail == nullptr ? "" : detail) + ")");
  }
  if (completion->kind == Completion::Kind::kReceive) return;
  auto* operation = static_cast<Operation*>(completion);
  // Else it has been told, or is a write whose message has failed: Abandon has the rest.
  if (operation->taken) End(operation, BPS_UNAVAILABLE);
}

void ConnectedTransport::HandleReceive(Receive* receive, size_t size) {
  Peer* peer = receive->peer;
  const std::byte* buffer = peer->receive_buffer(receive->buffer);
  MessageHeader header{};
  if (size > sizeof header) std::memcpy(&header, buffer, sizeof header);
  if (header.kind == MessageHeader::kMessage && header.sender == peer->number()) {
    return HandleMessage(receive, sizeof header, size);
  }
  Announcement announcement;
  if (size >= sizeof announcement) std::memcpy(&announcement, buffer, sizeof announcement);
  if (header.kind == MessageHeader::kAnnouncement && size == sizeof announcement) {
    peer->incoming.push_back(announcement.key);
    return Repost(receive);
  }
  if (header.kind == MessageHeader::kAnnouncingMessage && size > sizeof announcement &&
      header.sender == peer->number()) {
    peer->incoming.push_back(announcement.key);
    return HandleMessage(receive, sizeof announcement, size);
  }
  MarkFailed(peer, BPS_UNAVAILABLE, "sent what is no message of this transport (" + std::to_string(size) + " bytes)");
}

void ConnectedTransport::HandleMessage(Receive* receive, size_t begin, size_t end) {
  Peer* peer = receive->peer;
  bps_event event = Event(BPS_EVENT_MESSAGE, peer->number());
  event.data = peer->receive_buffer(receive->buffer) + begin;
  event.size = end - begin;
  event.lease = uint64_t{peer->number()} << 32 | receive->buffer;
  receive->leased = true;
  ++peer->leases;
  events_.push_back(event);
}

void ConnectedTransport::HandleImmediate(uint64_t data, Receive* taken) {
  bps_event event = Event(BPS_EVENT_IMMEDIATE, BPS_PEER_UNKNOWN);
  event.immediate = static_cast<uint32_t>(data);
  if (taken != nullptr || endpoint_->WideImmediates()) {
    Peer* peer = taken != nullptr ? taken->peer : FindPeer(static_cast<bps_peer>(data >> 32));
    if (peer == nullptr || peer->state() == PeerState::kDown) return;
    if (taken != nullptr) Repost(taken);
    event.peer = peer->number();
    peer->progress = now_;
    if (!peer->incoming.empty()) peer->incoming.pop_front();
  }
  events_.push_back(event);
}

void ConnectedTransport::Repost(Receive* receive) {
  receive->leased = false;
  Peer* peer = receive->peer;
  if (!peer->attached()) return;
  if (const int code = peer->Repost(receive); code != 0) {
    MarkFailed(peer, BPS_UNAVAILABLE, "cannot be received from: " + ErrorText(code));
  }
}

void ConnectedTransport::Release(uint64_t lease) {
  const bps_peer number = static_cast<bps_peer>(lease >> 32);
  const uint32_t index = static_cast<uint32_t>(lease);
  Peer* peer = FindPeer(number);
  auto departed = departed_.find(number);
  if (peer == nullptr && departed != departed_.end()) peer = departed->second.get();
  if (peer == nullptr || peer->receive(index) == nullptr || !peer->receive(index)->leased) {
    BPS_TRANSPORT_LOG(host_, ERROR, "release of a message that is not on loan");
    return;
  }
  --peer->leases;
  Repost(peer->receive(index));
  if (departed != departed_.end() && peer->leases == 0) departed_.erase(departed);
}

void ConnectedTransport::Flush(Peer* peer) {
  told_.clear();
  const int code = peer->Flush(&told_);
  for (const Operation* operation : told_) {
    events_.push_back(Event(BPS_EVENT_SENT, peer->number(), BPS_OK, operation->user));
  }
  if (code != 0) MarkFailed(peer, BPS_UNAVAILABLE, "takes nothing any more: " + ErrorText(code));
}

void ConnectedTransport::FlushBacklog() {
  for (size_t i = 0; i < backlog_.size();) {
    Peer* peer = backlog_[i];
    Flush(peer);
    if (peer->waiting() == 0 || peer->failure_code != BPS_OK) {
      backlog_[i] = backlog_.back();
      backlog_.pop_back();
    } else {
      ++i;
    }
  }
}

void ConnectedTransport::CheckTime() {
  if (peer_timeout_.count() == 0 || now_ - checked_ < kTimeCheckInterval) return;
  checked_ = now_;
  for (auto& [number, peer] : peers_) {
    if (peer->state() == PeerState::kDown || peer->busy() == 0 || now_ - peer->progress < peer_timeout_) continue;
    MarkFailed(peer.get(), BPS_UNAVAILABLE,
               std::string(peer->state() == PeerState::kConnecting ? "did not connect" : "took nothing") + " for " +
                   std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(peer_timeout_).count()) +
                   " ms (BYTEPS_PEER_TIMEOUT)");
  }
  while (!requests_.empty() && now_ - requests_.front().since > peer_timeout_) {
    Reject(requests_.front().info.get());
    requests_.pop_front();
  }
}

int32_t ConnectedTransport::Arm() {
  if (!events_.empty() || !failed_peers_.empty() || !flushed_.empty()) return BPS_TRANSPORT_AGAIN;
  // The sleep ends when the patience with a peer does.
  Clock::time_point wake = kNever;
  for (auto& [number, peer] : peers_) {
    if (peer->state() == PeerState::kDown || peer->busy() == 0 || peer_timeout_.count() == 0) continue;
    wake = std::min(wake, peer->progress + peer_timeout_);
  }
  if (const Door* door = endpoint_->door(); door != nullptr) wake = std::min(wake, door->NextDeadline());
  // Nothing tells when a provider that refused an operation takes it.
  if (!backlog_.empty()) wake = std::min(wake, Clock::now() + kBacklogInterval);
  if (!endpoint_->Arm(wake)) return BPS_TRANSPORT_AGAIN;
  slept_ = true;
  return BPS_OK;
}

}  // namespace byteps::fabric
