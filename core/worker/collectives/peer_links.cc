#include "core/worker/collectives/peer_links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/wire/message.h"

namespace byteps {
namespace {

// What every transport can carry.
constexpr uint32_t kImmediateMask = (1u << 24) - 1;

}  // namespace

PeerLinks::PeerLinks(EndpointOptions options, Open open, PeerLinksHandler* handler, Logger* log)
    : options_(std::move(options)), opener_(std::move(open)), handler_(handler), log_(log) {}

PeerLinks::~PeerLinks() { Stop(); }

void PeerLinks::Join(const control::Epoch& epoch, const control::Member& self) {
  epoch_ = &epoch;
  own_rank_ = static_cast<uint32_t>(self.rank());
  own_member_ = self.member();
  for (const control::Member& worker : epoch.workers()) {
    Peer& peer = peers_.emplace_back();
    peer.member = worker.member();
    peer.description = absl::StrCat("rank ", worker.rank(), " (worker, host ", worker.host().name(), ", ",
                                    worker.host().address(), ", pid ", worker.pid(), ")");
  }
}

bool PeerLinks::EnsureOpen() {
  if (endpoint_ != nullptr) return true;
  if (failed_) return false;
  absl::StatusOr<Transport> transport = opener_();
  if (transport.ok() && transport->caps().alignment > 1) {
    transport =
        absl::UnimplementedError(absl::StrCat("transport \"", transport->name(), "\" takes aligned memory only"));
  }
  absl::StatusOr<std::string> address = transport.ok() ? transport->Address() : transport.status();
  if (!address.ok()) {
    failed_ = true;
    handler_->OnLinksFailed(Annotate(address.status(), "the transport between workers cannot be opened"));
    return false;
  }
  lane_.set_transport(transport->name());
  lane_.set_provider(transport->provider());
  lane_.set_address(*address);
  EndpointHandler* handler = this;
  endpoint_ = std::make_unique<Endpoint>(*std::move(transport), options_, handler, log_);
  return true;
}

void PeerLinks::Want(Time now, uint32_t rank) {
  Peer& peer = peers_[rank];
  if (peer.wanted || rank == own_rank_ || !peer.lost.ok()) return;
  if (!EnsureOpen()) return;
  Tell(rank);
  if (!peer.address.empty()) Add(now, rank);
}

// Told in one message with others, by the next Run.
void PeerLinks::Tell(uint32_t rank) {
  peers_[rank].wanted = true;
  telling_.push_back(peers_[rank].member);
}

void PeerLinks::OnAddress(Time now, uint32_t member, const control::Lane& lane) {
  for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (peer.member != member || rank == own_rank_ || !peer.address.empty()) continue;
    if (!EnsureOpen()) return;
    if (lane.transport() != lane_.transport() || lane.provider() != lane_.provider()) {
      // A set's members are compared when it connects.
      BPS_VERBOSE(*log_, 1) << peer.description << " has transport " << lane.transport() << " (" << lane.provider()
                            << "), this worker " << lane_.transport() << " (" << lane_.provider() << ")";
    }
    peer.address = lane.address();
    if (!peer.wanted) Tell(rank);
    Add(now, rank);
  }
}

void PeerLinks::Add(Time now, uint32_t rank) {
  Peer& peer = peers_[rank];
  if (peer.added || !peer.lost.ok()) return;
  peer.added = true;
  PeerSpec spec;
  spec.session = epoch_->session_id();
  spec.epoch = epoch_->epoch();
  spec.session_nonce = epoch_->nonce();
  spec.own_member = own_member_;
  spec.member = peer.member;
  spec.address = peer.address;
  spec.description = peer.description;
  spec.local_id = IdOf(own_rank_);
  spec.id = IdOf(rank);
  if (absl::Status status = endpoint_->AddPeer(now, spec); !status.ok()) {
    peer.lost = status;
    handler_->OnPeerLost(rank, status);
  }
}

void PeerLinks::Send(uint32_t rank, wire::RecordType type, std::span<const std::byte> fixed,
                     std::span<const std::byte> payload) {
  Peer& peer = peers_[rank];
  if (peer.ready) return endpoint_->Send(IdOf(rank), type, fixed, payload);
  if (!peer.lost.ok()) return;
  Kept& kept = peer.kept.emplace_back(Kept{type, {fixed.begin(), fixed.end()}});
  kept.body.insert(kept.body.end(), payload.begin(), payload.end());
}

bool PeerLinks::Write(uint32_t rank, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                      uint64_t user) {
  return peers_[rank].ready && peers_[rank].lost.ok() && endpoint_->Write(IdOf(rank), from, size, to, immediate, user);
}

absl::StatusOr<Region> PeerLinks::Register(std::byte* base, size_t size) {
  return Region::Make(&endpoint_->transport(), base, size);
}

int32_t PeerLinks::ExportKey(const Region& region, uint32_t rank, uint8_t* key) {
  return endpoint_->transport().ExportKey(region.get(), IdOf(rank), key);
}

uint32_t PeerLinks::ClaimImmediate(uint64_t user) {
  do {
    last_immediate_ = (last_immediate_ + 1) & kImmediateMask;
  } while (!immediates_.emplace(last_immediate_, user).second);
  return last_immediate_;
}

bool PeerLinks::Run(Time now) {
  if (!telling_.empty()) handler_->OnTellAddress(std::exchange(telling_, {}), lane_);
  return endpoint_ != nullptr && endpoint_->Poll(now);
}

Time PeerLinks::NextTimer() const {
  if (!telling_.empty()) return 0;
  return endpoint_ == nullptr ? kNever : endpoint_->NextTimer();
}

void PeerLinks::Stop() {
  failed_ = true;
  telling_.clear();
  immediates_.clear();
  endpoint_.reset();
  for (Peer& peer : peers_) {
    peer.ready = false;
    if (peer.lost.ok()) peer.lost = absl::CancelledError("the links between workers are closed");
  }
}

void PeerLinks::AddEndpoints(std::vector<Endpoint*>* all) {
  if (endpoint_ != nullptr) all->push_back(endpoint_.get());
}

// ---- The endpoint's events ----

void PeerLinks::OnReady(PeerId id) {
  Peer& peer = peers_[RankOf(id)];
  peer.ready = true;
  for (const Kept& kept : std::exchange(peer.kept, {})) endpoint_->Send(id, kept.type, kept.body);
}

void PeerLinks::OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) {
  handler_->OnPeerRecord(RankOf(peer), type, body);
}

void PeerLinks::OnLanded(uint32_t immediate) {
  const auto found = immediates_.find(immediate);
  if (found == immediates_.end()) return;  // of a round that was given up
  const uint64_t user = found->second;
  immediates_.erase(found);
  handler_->OnPeerLanded(user);
}

void PeerLinks::OnWritten(PeerId peer, uint64_t user, int32_t code) {
  handler_->OnPeerWritten(RankOf(peer), user, code);
}

void PeerLinks::OnPeerDown(PeerId id, const absl::Status& why) {
  Peer& peer = peers_[RankOf(id)];
  peer.ready = false;
  peer.kept.clear();
  peer.lost = why;
  handler_->OnPeerLost(RankOf(id), why);
}

}  // namespace byteps
