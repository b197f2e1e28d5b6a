// How peers of the shared memory transport end: what has failed, fences, memory that is taken back.
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport_plugins/shm/patience.h"
#include "transport_plugins/shm/process_memory.h"
#include "transport_plugins/shm/transport.h"

namespace byteps::shm {
namespace {

// How long a peer that was disconnected may keep pointers into our memory (at most: BYTEPS_PEER_TIMEOUT, if shorter).
constexpr std::chrono::nanoseconds kFencePatience = std::chrono::seconds(10);

}  // namespace

// ---- The end of peers ----

void Transport::MarkFailed(Peer* peer, int32_t code, const std::string& cause) {
  if (peer->failure_code != BPS_OK || peer->state == PeerState::kDown || peer->state == PeerState::kFencing) return;
  peer->failure_code = code;
  peer->cause = cause;
  failed_peers_.push_back(peer);
}

void Transport::FailOutOfDescriptors(Peer* peer) {
  CallOff(peer);
  MarkFailed(peer, BPS_RESOURCE_EXHAUSTED,
             "cannot be connected to: this process has no descriptors left (ulimit -n; each connection needs five)");
}

bool Transport::WatchListener() { return listening_ = sleeper_.Watch(listener_.get(), Sleeper::kListener, 0, EPOLLIN); }

// No peer can be let in, so those that are to call need not be waited for. One that calls before we know of it stays at
// the door until then: the listener would wake us for ever.
void Transport::FailCallersOutOfDescriptors() {
  sleeper_.Forget(listener_.get());
  listening_ = false;
  for (const auto& [number, peer] : peers_) {
    if (peer->state == PeerState::kCalling && peer->address().nonce < address_.nonce) FailOutOfDescriptors(peer.get());
  }
}

void Transport::ReportFailedPeers() {
  while (!failed_peers_.empty()) {
    Peer* peer = failed_peers_.back();
    failed_peers_.pop_back();
    const int32_t code = peer->failure_code;
    const std::string what = peer->Who() + " " + peer->cause;
    if (code == BPS_RESOURCE_EXHAUSTED) {
      BPS_SHM_LOG(context_.host, WARNING, what);
    } else {
      BPS_SHM_LOG(context_.host, INFO, what);
    }
    TakeDown(peer, code);
    bps_event& event = context_.events.Add(BPS_EVENT_PEER_DOWN, peer->number(), code);
    reasons_.Attach(&event, peer->cause);  // the peer may be gone when it is read
  }
}

void Transport::TakeDown(Peer* peer, int32_t code) {
  if (peer->state == PeerState::kDown) return;
  peer->state = PeerState::kDown;
  peer->EndAll(code);
  // shutdown() as well: a forked child may hold the socket open.
  if (peer->socket) ::shutdown(peer->socket.get(), SHUT_RDWR);
  sleeper_.Forget(peer->socket.get());
  if (peer->remote() != nullptr) sleeper_.Forget(peer->remote()->process());
  peer->socket.reset();
  for (const auto& [control, descriptor] : peer->unsent) {
    if (descriptor >= 0) ::close(descriptor);
  }
  peer->unsent.clear();
  std::erase(active_, peer);
  std::erase(calling_, peer);
}

// Could the peer still write memory of ours without our doing?
bool Transport::StillUses(const Peer& peer) const {
  if (peer.remote() == nullptr || peer.remote()->Ended()) return false;
  // Nothing more can be known of a process that is not visible and has closed its connection.
  if (peer.remote()->process() < 0 && peer.state == PeerState::kDown) return false;
  return peer.UsesLedger() || peer.outgoing().memory().header.mapped.load() != 0;
}

int32_t Transport::Disconnect(bps_peer number) {
  Peer* peer = Find(number);
  if (peer == nullptr || peer->state == PeerState::kFencing) return BPS_NOT_FOUND;
  const bool was_down = peer->state == PeerState::kDown;
  std::erase(failed_peers_, peer);
  peer->outgoing().memory().header.closed.store(1);
  peer->RevokeAll();
  context_.regions.ForEach([&](Region* region) {
    const auto grant = region->grants.find(number);
    if (grant == region->grants.end()) return;
    if (region->memory && region->memory->lent() && peer->Users(grant->second) != 0) {
      peer->writing.push_back(region->number);
    }
    region->grants.erase(grant);
  });
  {
    const std::lock_guard<std::mutex> lock(remotes_mutex_);
    remotes_.erase(number);
  }
  if (was_down || !peer->connected() || !StillUses(*peer)) {
    // (Of a peer that was lost, the connection is gone, and with it the end of its copies, or its process.)
    TakeDown(peer, BPS_CANCELLED);
    if (!was_down || !StillUses(*peer)) {
      EndFence(peer);
      return BPS_OK;
    }
  } else {
    peer->EndAll(BPS_CANCELLED);
    std::erase(active_, peer);
    ::shutdown(peer->socket.get(), SHUT_WR);
  }
  peer->state = PeerState::kFencing;
  peer->fence_deadline =
      Clock::now() + (peer_timeout_.count() == 0 ? kFencePatience : std::min(kFencePatience, peer_timeout_));
  fencing_.push_back(peer);
  return BPS_OK;
}

void Transport::CheckFences() {
  for (size_t i = 0; i < fencing_.size();) {
    Peer* peer = fencing_[i];
    const size_t before = fencing_.size();
    if (!StillUses(*peer)) {
      EndFence(peer);
    } else if (now_ >= peer->fence_deadline) {
      const std::string who = peer->Who() + " was disconnected and holds memory of ours";
      if (!std::exchange(peer->killed, true) && peer->remote()->Kill()) {
        BPS_SHM_LOG(context_.host, WARNING, who + ": it is killed, so that it cannot write there any more");
        peer->fence_deadline = now_ + kKillPatience;
      } else {
        DetachFrom(*peer, who);
        EndFence(peer);
      }
    }
    if (fencing_.size() == before) ++i;
  }
}

// It may not be killed, but memory that is not the transport's own can be taken out of its reach.
void Transport::DetachFrom(const Peer& peer, const std::string& who) {
  bool safe = peer.outgoing().memory().header.mapped.load() == 0;
  for (const uint64_t number : peer.writing) {
    Region* region = context_.regions.Find(number);
    // Given back meanwhile, or out of reach already, since another peer was writing it, too.
    if (region == nullptr || !region->memory) continue;
    if (region->memory->Detach()) {
      Withdraw(region);
    } else {
      safe = false;
    }
  }
  if (safe && !peer.writing.empty()) {
    BPS_SHM_LOG(context_.host, WARNING, who + kDetached);
  } else {
    BPS_SHM_LOG(context_.host, ERROR, who + kUnkillable);
  }
}

// What a peer still writes into the file would be lost: it is disconnected, so that it notices.
void Transport::Withdraw(Region* region) {
  for (const auto& [number, grant] : region->grants) {
    Peer* other = Find(number);
    if (grant.shown && other != nullptr) {
      MarkFailed(other, BPS_UNAVAILABLE,
                 "shares memory with a process that does not move and had to be taken out of its reach");
    }
  }
  context_.regions.MakeOrdinary(region);
}

void Transport::EndFence(Peer* peer) {
  std::erase(fencing_, peer);
  if (peer->state == PeerState::kFencing) peer->state = PeerState::kCalling;  // so that TakeDown has something to do
  TakeDown(peer, BPS_CANCELLED);
  const bps_peer number = peer->number();
  context_.events.Add(BPS_EVENT_DISCONNECTED, number);
  auto node = peers_.extract(number);
  if (peer->leases() != 0) departed_.insert(std::move(node));
}

}  // namespace byteps::shm
