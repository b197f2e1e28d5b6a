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

constexpr uint32_t kHelloMagic = 0x32484742;
// What libfabric carries along with a connection request, at most.
constexpr size_t kMaxConnectionData = 256;
constexpr size_t kMaxRequests = 4096;
// Connections that are being made, for which it is asked whether there are descriptors.
constexpr size_t kMostCheckedAtOnce = 32;
constexpr size_t kMaxEventsAtClose = 2 * kMaxRequests;
constexpr uint64_t kMaxTransfer = uint64_t{1} << 32;
// How long unreg lets a transfer that uses the memory come to its end before it cuts the connection.
constexpr std::chrono::milliseconds kUnregPatience{200};
// Connection events (a lost connection, a caller) are looked at every so many rounds, and after each sleep.
constexpr uint32_t kConnectionRounds = 16;
// Reads of the event queue until a request that was handed over has become an event.
constexpr int kRoundsOfRequest = 8;
constexpr std::chrono::milliseconds kTimeCheckInterval{10};
constexpr std::chrono::milliseconds kBacklogInterval{1};

// Of an address as the provider gives it, by its size.
std::string KindOf(size_t size) {
  if (size == sizeof(sockaddr_in)) return "IPv4";
  if (size == sizeof(sockaddr_in6)) return "IPv6";
  return std::to_string(size) + " bytes";
}

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

// ---- Connections ----

Peer* ConnectedTransport::FindPeer(bps_peer number) {
  auto peer = peers_.find(number);
  return peer == peers_.end() ? nullptr : peer->second.get();
}

int32_t ConnectedTransport::Connect(const bps_connect_args& args, std::string* reason) {
  const std::vector<Address> addresses = ParseAddresses(Address::kConnected, args.address, args.address_size);
  if (addresses.empty()) {
    *reason =
        "the address of peer " + std::to_string(args.peer) + " is none of transport " + endpoint_->provider().name;
    return BPS_INVALID_ARGUMENT;
  }
  const size_t theirs = addresses.front().provided.size(), ours = endpoint_->address().size();
  if (theirs != ours) {
    *reason = "the address of peer " + std::to_string(args.peer) + " is " + KindOf(theirs) + ", that of this end " +
              KindOf(ours) + ": give all roles addresses of one kind, by DMLC_NODE_HOST or DMLC_INTERFACE";
    return BPS_INVALID_ARGUMENT;
  }
  // Of a peer with several lanes this is the first.
  const Address& address = addresses.front();
  if (address.nonce == nonce_) {
    *reason = "peer " + std::to_string(args.peer) + " is this endpoint itself";
    return BPS_INVALID_ARGUMENT;
  }
  if (FindPeer(args.peer) != nullptr || departed_.count(args.peer) != 0) {
    *reason = "there is a peer " + std::to_string(args.peer) + " already";
    return BPS_ALREADY_EXISTS;
  }
  const size_t room = endpoint_->CompletionQueueSize() / (depth_ + endpoint_->provider().receives());
  if (endpoint_->provider().bounded_queue && peers_.size() >= room) {
    *reason = "the completion queue of this device is large enough for " + std::to_string(room) +
              " peers, and they are there already; open more endpoints (BYTEPS_SERVER_ENGINE_THREAD)";
    return BPS_RESOURCE_EXHAUSTED;
  }
  auto made = std::make_unique<Peer>(*endpoint_, args, depth_);
  Peer* peer = made.get();
  peer->nonce = address.nonce;
  peer->who = transports::PeerName(args) + " at " + endpoint_->Print(address.provided);
  peer->progress = Clock::now();
  if (const int code = peer->RegisterBuffers(); code != 0) {
    *reason = "cannot register the buffers of peer " + std::to_string(args.peer) + ": " + ErrorText(code) +
              endpoint_->AdviceOnMemory();
    return BPS_RESOURCE_EXHAUSTED;
  }
  peers_.emplace(args.peer, std::move(made));
  ++connecting_;
  // One that comes in without a descriptor being left is never seen.
  const size_t needed = std::min(connecting_, kMostCheckedAtOnce) * kDescriptorsPerConnection;
  if (FreeDescriptors(needed) < needed) {
    Doom(peer, BPS_RESOURCE_EXHAUSTED,
         "cannot be connected to: a connection takes up to " + std::to_string(kDescriptorsPerConnection) +
             " descriptors" + DescriptorAdvice());
    return BPS_OK;
  }
  if (nonce_ < address.nonce) {
    if (const int code = Call(peer, address.provided); code != 0) {
      Doom(peer, BPS_UNAVAILABLE, "cannot be called: " + ErrorText(code));
    }
    return BPS_OK;
  }
  for (auto request = requests_.begin(); request != requests_.end(); ++request) {
    if (Meet(*request)) {
      requests_.erase(request);
      break;
    }
  }
  return BPS_OK;
}

int ConnectedTransport::Call(Peer* peer, const std::string& address) {
  int code = 0;
  FidPtr<fid_ep> connection = endpoint_->NewConnection(address, &code);
  if (connection == nullptr) return code;
  by_connection_[&connection->fid] = peer;
  code = peer->Adopt(std::move(connection));
  if (code != 0) return code;
  const Hello hello{kHelloMagic, peer->local_id(), job_key_, nonce_, peer->nonce};
  return fi_connect(peer->connection(), address.data(), &hello, sizeof hello);
}

int ConnectedTransport::Answer(Peer* peer, fi_info* request) {
  int code = 0;
  FidPtr<fid_ep> connection = endpoint_->NewConnection(request, &code);
  if (connection == nullptr) return code;
  by_connection_[&connection->fid] = peer;
  code = peer->Adopt(std::move(connection));
  return code != 0 ? code : fi_accept(peer->connection(), nullptr, 0);
}

void ConnectedTransport::Reject(fi_info* request) { fi_reject(endpoint_->listener(), request->handle, nullptr, 0); }

// A request holds the socket that was accepted for it, which the provider does not close by itself. Whoever calls on and
// on while we close is not waited for.
void ConnectedTransport::RejectRequests() {
  for (const Request& request : requests_) Reject(request.info.get());
  requests_.clear();
  ConnectionEvent event;
  for (size_t i = 0; i < kMaxEventsAtClose && NextConnectionEvent(&event); ++i) {
    if (event.kind == FI_CONNREQ) Reject(event.request.get());
  }
}

bool ConnectedTransport::Meet(Request& request) {
  Peer* peer = FindPeer(request.hello.caller);
  if (peer == nullptr) return false;
  if (peer->nonce != request.hello.caller_nonce || peer->attached() || peer->state() != PeerState::kConnecting) {
    // Not who we were told, or a second call. A new life of a process has a new nonce, and a new peer number.
    refusals_.Say(host_, now_,
                  "refused a connection that claims to be " + peer->who + " (" + Name(peer->state()) +
                      "), but is not the process we were told about");
    Reject(request.info.get());
    return true;
  }
  if (const int code = Answer(peer, request.info.get()); code != 0) {
    Doom(peer, BPS_UNAVAILABLE, "cannot be answered: " + ErrorText(code));
  }
  return true;
}

bool ConnectedTransport::NextConnectionEvent(ConnectionEvent* event) {
  *event = {};
  // libfabric 1.17 takes what is left in errno for the error of a recv(2) that has met the end of a connection: with EAGAIN
  // there it would wait for more, for ever.
  errno = 0;
  alignas(fi_eq_cm_entry) char buffer[sizeof(fi_eq_cm_entry) + kMaxConnectionData];
  const auto* const entry = reinterpret_cast<fi_eq_cm_entry*>(buffer);
  const ssize_t size = fi_eq_read(endpoint_->eq(), &event->kind, buffer, sizeof buffer, 0);
  if (size == -FI_EAVAIL) {
    fi_eq_err_entry error{};
    if (fi_eq_readerr(endpoint_->eq(), &error, 0) < 0) return false;
    event->kind = kConnectionError;
    event->connection = error.fid;
    event->error = error.err;
    return true;
  }
  if (size < 0) return false;
  event->connection = entry->fid;
  if (event->kind == FI_CONNREQ) {
    event->request.reset(entry->info);
    const size_t data = static_cast<size_t>(size) - std::min(static_cast<size_t>(size), sizeof *entry);
    if (data >= sizeof event->hello) std::memcpy(&event->hello, entry->data, sizeof event->hello);
    Door* door = endpoint_->door();
    const auto* said = reinterpret_cast<const std::byte*>(&event->hello);
    if (door != nullptr && !door->Admit({said, sizeof event->hello})) event->hello = {};
  }
  return true;
}

void ConnectedTransport::DrainConnections() {
  slept_ = false;
  Door* door = endpoint_->door();
  if (door != nullptr) LookAtDoor();
  // What the door has handed over takes the queue a round to accept and one to read.
  int nothing = 0;
  ConnectionEvent event;
  while (nothing < kRoundsOfRequest) {
    if (NextConnectionEvent(&event)) {
      HandleConnectionEvent(std::move(event));
      if (door != nullptr) door->HandOver(now_);
      nothing = 0;
    } else if (door != nullptr && door->handing()) {
      ++nothing;
    } else {
      return;
    }
  }
}

void ConnectedTransport::HandleConnectionEvent(ConnectionEvent event) {
  if (event.kind == FI_CONNREQ) return HandleRequest({std::move(event.request), event.hello, now_});
  auto found = by_connection_.find(event.connection);
  if (found == by_connection_.end()) return;
  Peer* peer = found->second;
  if (event.kind == kConnectionError) {
    Doom(peer, BPS_UNAVAILABLE,
         std::string(peer->state() == PeerState::kConnecting ? "cannot be reached: " : "broke off: ") +
             ErrorText(event.error));
  } else if (event.kind == FI_CONNECTED && peer->state() == PeerState::kConnecting) {
    --connecting_;
    peer->Connected();
    peer->progress = now_;
    if (peer->waiting() != 0) backlog_.push_back(peer);
  } else if (event.kind == FI_SHUTDOWN) {
    Doom(peer, BPS_UNAVAILABLE, "closed its connection");
  }
}

bool ConnectedTransport::IsForUs(const Hello& hello) const {
  return hello.magic == kHelloMagic && hello.job_key == job_key_ && hello.answerer_nonce == nonce_;
}

void ConnectedTransport::LookAtDoor() {
  endpoint_->door()->Progress(
      now_,
      [this](std::span<const std::byte> data) {
        Hello hello{};
        if (data.size() == sizeof hello) std::memcpy(&hello, data.data(), sizeof hello);
        return IsForUs(hello);
      },
      [this](const std::string& who, const std::string& why) {
        refusals_.Say(host_, now_, "refused a connection from " + who + " that is not of this job: " + why);
      });
}

void ConnectedTransport::HandleRequest(Request request) {
  if (!IsForUs(request.hello) || requests_.size() >= kMaxRequests) {
    refusals_.Say(host_, now_, "refused a connection that is not of this job");
    Reject(request.info.get());
  } else if (!Meet(request)) {
    requests_.push_back(std::move(request));
  }
}

// ---- Failure ----

void ConnectedTransport::Doom(Peer* peer, int32_t code, const std::string& cause) {
  if (peer->doom != BPS_OK || peer->state() == PeerState::kDown) return;
  peer->doom = code;
  peer->cause = cause;
  doomed_.push_back(peer);
}

// What is flushed from a connection says that it has ended, and of the cause nothing: that is in the other queue, or was
// an error of another operation.
void ConnectedTransport::DoomTheFlushed() {
  if (flushed_.empty()) return;
  DrainConnections();
  for (const bps_peer number : std::exchange(flushed_, {})) {
    Peer* peer = FindPeer(number);
    if (peer == nullptr || !peer->attached()) continue;
    Doom(peer, BPS_UNAVAILABLE,
         peer->state() == PeerState::kConnecting ? "cannot be reached: it has ended the connection"
                                                 : "closed its connection");
  }
}

void ConnectedTransport::BuryTheDoomed() {
  while (!doomed_.empty()) {
    Peer* peer = doomed_.back();
    doomed_.pop_back();
    BPS_TRANSPORT_LOG(host_, INFO, peer->who + " " + peer->cause);
    TakeDown(peer, peer->doom);
    bps_event& event = events_.emplace_back(Event(BPS_EVENT_PEER_DOWN, peer->number(), peer->doom));
    reasons_.Attach(&event, peer->cause);  // the peer may be gone when it is read
  }
}

void ConnectedTransport::TakeDown(Peer* peer, int32_t code) {
  if (peer->state() == PeerState::kDown) return;
  // What has come already counts, and after the connection is closed the queue must not name this peer any more.
  EmptyQueue();
  if (peer->state() == PeerState::kConnecting) --connecting_;
  if (peer->attached()) by_connection_.erase(&peer->connection()->fid);
  peer->CloseConnection();
  EmptyQueue();
  for (Operation* operation : peer->Abandon()) End(operation, code);
  for (auto& [key, region] : regions_) region->Withdraw(peer->number());
  backlog_.erase(std::remove(backlog_.begin(), backlog_.end(), peer), backlog_.end());
}

int32_t ConnectedTransport::Disconnect(bps_peer number) {
  Peer* peer = FindPeer(number);
  if (peer == nullptr) return BPS_NOT_FOUND;
  TakeDown(peer, BPS_CANCELLED);
  doomed_.erase(std::remove(doomed_.begin(), doomed_.end(), peer), doomed_.end());
  events_.push_back(Event(BPS_EVENT_DISCONNECTED, number));
  auto node = peers_.extract(number);
  if (peer->leases != 0) departed_.insert(std::move(node));
  return BPS_OK;
}

// ---- Memory ----

int32_t ConnectedTransport::Reg(void* base, size_t size, bps_region** out, std::string* reason) {
  if (base == nullptr || size == 0) {
    *reason = "a region needs an address and a size";
    return BPS_INVALID_ARGUMENT;
  }
  auto region = std::make_unique<Region>(endpoint_->memory(), base, size);
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
    Doom(peer, BPS_CANCELLED, "was cut off: its transfer would have gone on in memory that was given back");
  }
  BuryTheDoomed();
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
  if (peer == nullptr || peer->state() == PeerState::kDown || peer->doom != BPS_OK) return BPS_UNAVAILABLE;
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
  if (code != 0) Doom(peer, BPS_UNAVAILABLE, "takes nothing any more: " + ErrorText(code));
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
    DoomTheFlushed();
    BuryTheDoomed();
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
    Doom(completion->peer, BPS_UNAVAILABLE,
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
  Doom(peer, BPS_UNAVAILABLE, "sent what is no message of this transport (" + std::to_string(size) + " bytes)");
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
    Doom(peer, BPS_UNAVAILABLE, "cannot be received from: " + ErrorText(code));
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
  if (code != 0) Doom(peer, BPS_UNAVAILABLE, "takes nothing any more: " + ErrorText(code));
}

void ConnectedTransport::FlushBacklog() {
  for (size_t i = 0; i < backlog_.size();) {
    Peer* peer = backlog_[i];
    Flush(peer);
    if (peer->waiting() == 0 || peer->doom != BPS_OK) {
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
    Doom(peer.get(), BPS_UNAVAILABLE,
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
  if (!events_.empty() || !doomed_.empty() || !flushed_.empty()) return BPS_TRANSPORT_AGAIN;
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
