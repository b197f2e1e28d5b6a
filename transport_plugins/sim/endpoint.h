// endpoint.h - one simulated endpoint: what stands behind a bps_transport* of the fabric.
//
// Internal to the simulation. The functions of the table (endpoint_table.cc) are the contract of
// abi/transport.h; this class is its implementation, with the checks of the contract that README.md lists.
//
// The life of an operation:
//
//     post      accepted: a record in `operations_`, its local bytes remembered by a checksum
//     Leave     its turn on the link: the local bytes are read (and must be what they were), a packet is under way
//     Arrive    at the target, if that still exists, knows the sender, and the key is still good: data lands, event
//     there Complete  the event is queued here, at Leave or after Arrive (WrittenOrder); the record goes when poll
//     hands it out
//
// Cancelling (a lost peer, disconnect, unreg, close) completes the record early; what had left may still arrive.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SIM_ENDPOINT_H_
#define BYTEPS_TRANSPORT_PLUGINS_SIM_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "transport_plugins/sim/options.h"
#include "transport_plugins/sim/world.h"

namespace byteps::sim {

// Handles of regions are numbers.
inline uint64_t ToId(const bps_region* region) { return reinterpret_cast<uint64_t>(region); }

class Endpoint;

// All endpoints of a fabric, by number. An endpoint that was closed is not among them.
class EndpointMap {
 public:
  explicit EndpointMap(World* world) : world_(world) {}

  Endpoint* Open(const std::string& node, const EndpointOptions& options);
  Endpoint* Find(uint64_t id);
  // Removes it and tells its peers.
  void Close(uint64_t id);
  // The node has died (World::Dead says so already).
  void NodeDied(const std::string& node, Death death);
  void InvalidateKeys(const std::string& node);
  void RefuseCopies(const std::string& node, const std::string& of_node);
  void RefuseMappedWrites(const std::string& node, const std::string& of_node);

 private:
  void TellPeersOf(uint64_t id);

  World* world_;
  std::map<uint64_t, std::unique_ptr<Endpoint>> endpoints_;
};

class Endpoint {
 public:
  Endpoint(World* world, EndpointMap* endpoints, std::string node, EndpointOptions options, uint64_t id);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  uint64_t id() const { return id_; }
  const std::string& node() const { return node_; }
  EndpointMap* endpoints() { return endpoints_; }

  // -- The functions of the table, in its order --
  void Close();
  void Caps(bps_transport_caps* caps) const;
  int32_t Address(void* out, size_t* size) const;
  int32_t Connect(const bps_connect_args& args);
  int32_t Disconnect(bps_peer number);
  int32_t Register(void* base, size_t size, bps_region** region);
  void Unregister(bps_region* region);
  int32_t ExportKey(bps_region* region, bps_peer number, void* key);
  int32_t PostSend(bps_peer number, const void* data, size_t size, uint64_t user);
  int32_t PostTransfer(uint32_t type, bps_peer number, const bps_local* local, size_t size, const bps_remote* remote,
                       uint32_t immediate, uint64_t user) {
    return PostTransfer(type, number, local, size, remote, immediate, user, nullptr);
  }
  int32_t PostSendAndWrite(bps_peer number, const void* message, size_t message_size, const bps_local* from,
                           size_t size, const bps_remote* to, uint32_t immediate, uint64_t user);
  size_t Poll(bps_event* events, size_t capacity);
  void Release(uint64_t lease);
  // The memory itself, to copy from and to.
  int32_t Resolve(bps_peer number, const bps_remote* remote, size_t size, std::byte** base);
  // The same to map it; AGAIN for a while.
  int32_t Map(bps_peer number, const bps_remote* remote, size_t size, std::byte** base);
  void Unmap() { --world_->stats().mapped; }
  bool WritesRefused(bps_peer number) const;
  int32_t WaitFd();
  int32_t Arm();
  int32_t Allocate(size_t size, bps_region** region, void** base);

  // -- What the fabric does to it --
  // The endpoint `other` is gone: its peer here notices (EndpointOptions::down_needs_traffic).
  void PeerGone(uint64_t other);
  void Die();
  void InvalidateKeys();
  void RefuseCopies(const std::string& of_node) { refused_.insert(of_node); }
  void RefuseMappedWrites(const std::string& of_node) { writes_refused_.insert(of_node); }

 private:
  struct Region {
    std::byte* base;
    size_t size;
    std::unique_ptr<std::byte[]> owned;  // by allocate
    std::vector<uint64_t> cookies;       // of its keys
  };
  // A key: good until the region is unregistered or the peer disconnected; then kept, to tell old keys from forged
  // ones.
  struct Export {
    uint64_t region;
    bps_peer peer;
    bool valid;
  };
  enum class PeerState { kUp, kDown, kDisconnecting, kDisconnected };
  struct Peer {
    uint64_t endpoint = 0;  // of the other side; 0: there is none at that address
    std::string node;
    uint32_t local_id = 0;  // how the other side calls us
    PeerState state = PeerState::kUp;
    bool failed = false;  // the other side is gone; PEER_DOWN is on its way or waits for traffic
    bool losing = false;  // PEER_DOWN is on its way
    Time open_at = -1;    // when posts are taken (EndpointOptions::first_send); -1: not tried yet
    Time busy_until = 0;  // the link
    std::deque<std::pair<Time, size_t>> leaving;  // what was posted, by when it has left (with socket_bytes)
    Time last_message = 0;                        // arrival of the last message sent
    Time last_arrival = 0;                        // arrival of anything sent that may not be overtaken
    uint32_t unreleased = 0;
  };
  enum class OpState { kPosted, kUnderWay, kFinished };
  struct Operation {
    uint32_t type;  // BPS_EVENT_SENT, WRITTEN, READ
    OpState state = OpState::kPosted;
    bps_peer peer;
    uint64_t user;
    std::byte* base = nullptr;  // local memory; null: the data is in `message`
    size_t size = 0;
    uint64_t region = 0;  // 0: none
    uint64_t checksum = 0;
    bool watched = false;  // `base` must hold what it held
    bool untold = false;   // no event tells its end
    std::vector<std::byte> message;
    uint64_t cookie = 0;  // of the remote key
    uint64_t offset = 0;
    uint32_t immediate = 0;
  };
  struct Queued {
    bps_event event;
    uint64_t operation = 0;  // the record that goes with it
  };
  struct Lease {
    bps_peer peer;
    std::unique_ptr<std::byte[]> data;
    size_t size;
  };

  // `ahead`: goes in front of it, if it is accepted.
  int32_t PostTransfer(uint32_t type, bps_peer number, const bps_local* local, size_t size, const bps_remote* remote,
                       uint32_t immediate, uint64_t user, Operation* ahead);
  // A post to `number`: BPS_OK, or the answer.
  int32_t Admit(const char* what, bps_peer number, Peer** peer);
  int32_t Again();
  int32_t Start(Peer& peer, Operation operation);
  // When the last of what was posted to the peer lies in its socket's buffer; INT64_MAX: there is none.
  Time Buffered(Peer* peer, size_t bytes) const;
  void Buffer(uint64_t operation);
  void Leave(uint64_t operation);
  // How long so many bytes to or from that one take of the rate of this one.
  Time Occupies(const Endpoint* other, size_t bytes) const;
  // Time at which `size` bytes that leave now are at the other side.
  Time Arrival(Peer& peer, size_t size, bool message);
  void Complete(uint64_t operation, int32_t code);
  void Verify(const Operation& operation, const char* when);
  // Ends what is unfinished of this peer.
  void CancelOf(bps_peer number, int32_t code);
  void MarkFailed(bps_peer number);
  void LosePeer(bps_peer number);
  // A packet of endpoint `from`, which calls itself `number` here.
  void MessageArrives(uint64_t from, bps_peer number, std::vector<std::byte> data);
  bool WriteLands(uint64_t from, const Operation& operation, const std::vector<std::byte>& data);
  // The memory behind a key shown to endpoint `from`; null: the key is void. Anything else is a violation.
  int32_t Find(bps_peer number, const bps_remote* remote, size_t size, std::byte** base);
  std::byte* Lookup(uint64_t from, uint64_t cookie, uint64_t offset, size_t size, bps_peer* peer);
  void Push(const bps_event& event, uint64_t operation = 0);
  void Wake();
  uint64_t Cookie(const bps_remote* remote);
  void Violation(const std::string& what) const;
  std::string Name() const;

  World* const world_;
  EndpointMap* const endpoints_;
  const std::string node_;
  const EndpointOptions options_;
  const uint64_t id_;
  bool dead_ = false;
  std::map<bps_peer, Peer> peers_;
  std::map<uint64_t, Region> regions_;
  std::map<uint64_t, Export> exports_;  // by cookie
  std::map<uint64_t, Operation> operations_;
  std::map<uint64_t, Operation> buffered_;  // copies of those that have ended and not left, by the same numbers
  std::map<uint64_t, Lease> leases_;
  std::set<std::string> refused_;         // nodes whose memory may not be copied from and to
  std::set<std::string> writes_refused_;  // nodes whose memory is mapped to be read alone
  std::map<uint64_t, Time> mappable_at_;  // by cookie, of others
  std::deque<Queued> queue_;
  World::Nic own_nic_;
  World::Nic* const nic_;
  Time backoff_ = 0;
  bool waking_ = false;
  int wait_fd_ = -1;
};

// The functions of abi/transport.h on Endpoints.
const bps_transport_table* EndpointTable();
bps_transport* ToHandle(Endpoint* endpoint);

}  // namespace byteps::sim

#endif  // BYTEPS_TRANSPORT_PLUGINS_SIM_ENDPOINT_H_
