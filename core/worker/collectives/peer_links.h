// peer_links.h - the connections between the workers of a job, each made when it is first needed.
//
//     PeerLinks links(options, open, &handler, log);
//     links.Join(epoch, self);
//     links.Want(now, rank);                           // connects, unless it is connected
//     links.Send(rank, type, fixed, payload);          // kept until the link is ready
//     if (links.Ready(rank)) links.Write(rank, from, size, to, immediate, user);
//     links.OnAddress(now, member, lane);              // the coordinator passes on where a worker can be reached
//
// The subtle parts:
//
// Opening.    The transport is opened with the first link: a job that only calls push_pull has none of this. Each side
//             tells the other its address through the coordinator, and connects when it knows the other's: so both
//             begin at about the same time, whichever asked first.
// Immediates. A rank that shows memory claims an immediate for each write into it; its number says when the bytes
//             are there. Numbers go round in 24 bits, and are not used again before they were given back.
// Loss.       The handler hears of a lost peer once. Nothing is sent to it any more.
// Threads:    none; driven by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_PEER_LINKS_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_PEER_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"
#include "core/plugin/region.h"
#include "core/plugin/transport.h"
#include "core/wire/wire.h"

namespace byteps {

class PeerLinksHandler {
 public:
  virtual ~PeerLinksHandler() = default;
  // To the coordinator: these members are to hear where this worker can be reached.
  virtual void OnTellAddress(const std::vector<uint32_t>& members, const control::Lane& lane) = 0;
  virtual void OnPeerRecord(uint32_t rank, wire::RecordType type, std::span<const std::byte> body) = 0;
  // The bytes written under an immediate are there; `user` as claimed.
  virtual void OnPeerLanded(uint64_t user) = 0;
  virtual void OnPeerWritten(uint32_t rank, uint64_t user, int32_t code) = 0;
  virtual void OnPeerLost(uint32_t rank, const absl::Status& why) = 0;
  // No link can be had at all.
  virtual void OnLinksFailed(const absl::Status& why) = 0;
};

class PeerLinks : private EndpointHandler {
 public:
  // `open`: makes the transport; may be called once.
  using Open = std::function<absl::StatusOr<Transport>()>;
  PeerLinks(EndpointOptions options, Open open, PeerLinksHandler* handler, Logger* log);
  ~PeerLinks() override;

  // The membership: `epoch` must stay until Stop.
  void Join(const control::Epoch& epoch, const control::Member& self);
  void OnAddress(Time now, uint32_t member, const control::Lane& lane);

  void Want(Time now, uint32_t rank);
  bool Ready(uint32_t rank) const { return peers_[rank].ready; }
  // OK, or why the peer is lost.
  const absl::Status& lost(uint32_t rank) const { return peers_[rank].lost; }
  // "rank 1 (worker, host b, 10.0.0.2, pid 42)"
  const std::string& description(uint32_t rank) const { return peers_[rank].description; }
  uint32_t member(uint32_t rank) const { return peers_[rank].member; }

  void Send(uint32_t rank, wire::RecordType type, std::span<const std::byte> fixed,
            std::span<const std::byte> payload = {});
  // False: not now; try after the next Run.
  bool Write(uint32_t rank, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
             uint64_t user);
  size_t MaxRecord() const { return endpoint_->MaxRecord(); }

  // Memory that peers write, or (only where the transport asks for it) that is written from.
  absl::StatusOr<Region> Register(std::byte* base, size_t size);
  bool needs_local_regions() const { return (endpoint_->caps().flags & BPS_TRANSPORT_LOCAL_ANY) == 0; }
  uint32_t key_size() const { return endpoint_->caps().key_size; }
  uint64_t max_transfer() const { return endpoint_->caps().max_transfer; }
  int32_t ExportKey(const Region& region, uint32_t rank, uint8_t* key);
  uint32_t ClaimImmediate(uint64_t user);
  void ReturnImmediate(uint32_t immediate) { immediates_.erase(immediate); }

  bool Run(Time now);
  Time NextTimer() const;
  // Nothing touches the peers' memory afterwards. Regions must be gone.
  void Stop();
  void AddEndpoints(std::vector<Endpoint*>* all);
  bool open() const { return endpoint_ != nullptr; }

 private:
  struct Kept {
    wire::RecordType type;
    std::vector<std::byte> body;
  };
  struct Peer {
    uint32_t member = 0;
    std::string description;
    bool wanted = false;  // our address was told
    bool added = false;
    bool ready = false;
    std::string address;
    absl::Status lost;
    std::vector<Kept> kept;  // until the link is ready
  };

  static PeerId IdOf(uint32_t rank) { return 1 + rank; }
  static uint32_t RankOf(PeerId peer) { return peer - 1; }
  bool EnsureOpen();
  void Tell(uint32_t rank);
  void Add(Time now, uint32_t rank);

  void OnReady(PeerId peer) override;
  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(uint32_t immediate) override;
  void OnWritten(PeerId peer, uint64_t user, int32_t code) override;
  void OnRoom(PeerId) override {}
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnRemoved(PeerId) override {}

  const EndpointOptions options_;
  const Open opener_;
  PeerLinksHandler* const handler_;
  Logger* const log_;
  std::unique_ptr<Endpoint> endpoint_;
  control::Lane lane_;
  const control::Epoch* epoch_ = nullptr;
  uint32_t own_rank_ = 0;
  uint32_t own_member_ = 0;
  std::vector<Peer> peers_;
  std::vector<uint32_t> telling_;  // members
  absl::flat_hash_map<uint32_t, uint64_t> immediates_;
  uint32_t last_immediate_ = 0;
  bool failed_ = false;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_PEER_LINKS_H_
