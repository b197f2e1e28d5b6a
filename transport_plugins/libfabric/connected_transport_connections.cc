// How connected endpoints of libfabric meet and end: calls, requests, connection events, lost peers.
#include <netinet/in.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport_plugins/common/peer_name.h"
#include "transport_plugins/libfabric/address.h"
#include "transport_plugins/libfabric/connected_transport.h"
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
// Reads of the event queue until a request that was handed over has become an event.
constexpr int kRoundsOfRequest = 8;
// Of an address as the provider gives it, by its size.
std::string KindOf(size_t size) {
  if (size == sizeof(sockaddr_in)) return "IPv4";
  if (size == sizeof(sockaddr_in6)) return "IPv6";
  return std::to_string(size) + " bytes";
}

}  // namespace

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
  BPS_TRANSPORT_LOG(host_, DEBUG, "connecting to " + peer->who);
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
    MarkFailed(peer, BPS_RESOURCE_EXHAUSTED,
               "cannot be connected to: a connection takes up to " + std::to_string(kDescriptorsPerConnection) +
                   " descriptors" + DescriptorAdvice());
    return BPS_OK;
  }
  if (nonce_ < address.nonce) {
    if (const int code = Call(peer, address.provided); code != 0) {
      MarkFailed(peer, BPS_UNAVAILABLE, "cannot be called: " + ErrorText(code));
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

// A request holds the socket that was accepted for it, which the provider does not close by itself. A peer that calls
// on and on while we close is not waited for.
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
    MarkFailed(peer, BPS_UNAVAILABLE, "cannot be answered: " + ErrorText(code));
  }
  return true;
}

bool ConnectedTransport::NextConnectionEvent(ConnectionEvent* event) {
  *event = {};
  // libfabric 1.17 takes what is left in errno for the error of a recv(2) that has met the end of a connection: with
  // EAGAIN there it would wait for more, for ever.
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
    MarkFailed(peer, BPS_UNAVAILABLE,
               std::string(peer->state() == PeerState::kConnecting ? "cannot be reached: " : "broke off: ") +
                   ErrorText(event.error));
  } else if (event.kind == FI_CONNECTED && peer->state() == PeerState::kConnecting) {
    --connecting_;
    peer->Connected();
    peer->progress = now_;
    if (peer->waiting() != 0) backlog_.push_back(peer);
  } else if (event.kind == FI_SHUTDOWN) {
    MarkFailed(peer, BPS_UNAVAILABLE, "closed its connection");
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

void ConnectedTransport::MarkFailed(Peer* peer, int32_t code, const std::string& cause) {
  if (peer->failure_code != BPS_OK || peer->state() == PeerState::kDown) return;
  peer->failure_code = code;
  peer->cause = cause;
  failed_peers_.push_back(peer);
}

// What is flushed from a connection says that it has ended, and of the cause nothing: that is in the other queue, or
// was an error of another operation.
void ConnectedTransport::MarkFlushedPeersFailed() {
  if (flushed_.empty()) return;
  DrainConnections();
  for (const bps_peer number : std::exchange(flushed_, {})) {
    Peer* peer = FindPeer(number);
    if (peer == nullptr || !peer->attached()) continue;
    MarkFailed(peer, BPS_UNAVAILABLE,
               peer->state() == PeerState::kConnecting ? "cannot be reached: it has ended the connection"
                                                       : "closed its connection");
  }
}

void ConnectedTransport::ReportFailedPeers() {
  while (!failed_peers_.empty()) {
    Peer* peer = failed_peers_.back();
    failed_peers_.pop_back();
    BPS_TRANSPORT_LOG(host_, INFO, peer->who + " " + peer->cause);
    TakeDown(peer, peer->failure_code);
    bps_event& event = events_.emplace_back(Event(BPS_EVENT_PEER_DOWN, peer->number(), peer->failure_code));
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
  failed_peers_.erase(std::remove(failed_peers_.begin(), failed_peers_.end(), peer), failed_peers_.end());
  events_.push_back(Event(BPS_EVENT_DISCONNECTED, number));
  auto node = peers_.extract(number);
  if (peer->leases != 0) departed_.insert(std::move(node));
  return BPS_OK;
}

}  // namespace byteps::fabric
