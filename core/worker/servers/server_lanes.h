// server_lanes.h - the server lanes that a worker is connected to, and what each can take.
//
// A lane is a server's share of work with a thread and an endpoint of its own; this worker reaches it over one of its
// carriers. Records to it wait in an outbox: what is queued there is counted, so that one knows when a record has left.
//
// Threads: none; driven by the thread that drives the servers stage.
// Ownership: the carriers outlive it.
#ifndef BYTEPS_CORE_WORKER_SERVERS_SERVER_LANES_H_
#define BYTEPS_CORE_WORKER_SERVERS_SERVER_LANES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/wire/wire.h"
#include "core/worker/servers/carrier.h"
#include "core/worker/servers/partition.h"

namespace byteps {

struct ServerLane {
  explicit ServerLane(std::pmr::memory_resource* memory) : held(memory), leaving(memory) {}
  ServerLane(ServerLane&&) = default;  // a copy would have memory of its own

  // Queues a record in its outbox.
  void Send(wire::RecordType type, std::span<const std::byte> fixed, std::span<const std::byte> payload = {});
  // Queues a record whose leaving is of interest to this task of the scheduler.
  void SendFor(uint64_t task, wire::RecordType type, std::span<const std::byte> fixed,
               std::span<const std::byte> payload);

  PeerId id = 0;
  Carrier* carrier = nullptr;
  std::string description;  // "server 1 (host a, 10.0.0.1, pid 42)"
  bool ready = false;
  std::pmr::deque<Partition*> held;  // chosen by the scheduler, not yet taken by the transport
  // Records without a write in the outbox: after how many bytes of ours each ends, and its task.
  std::pmr::deque<std::pair<uint64_t, uint64_t>> leaving;
  uint64_t queued_bytes = 0;  // of ours, ever
  bool full = false;          // its outbox; nothing is chosen for it
  size_t taken_slots = 0;     // of its slots, as of its last budget
};

class ServerLanes {
 public:
  ServerLane& Add(PeerId id, Carrier* carrier, std::string description);

  size_t size() const { return lanes_.size(); }
  ServerLane& operator[](size_t index) { return lanes_[index]; }
  std::vector<ServerLane>::iterator begin() { return lanes_.begin(); }
  std::vector<ServerLane>::iterator end() { return lanes_.end(); }

  bool Has(PeerId id) const { return index_.contains(id); }
  size_t IndexOf(PeerId id) const { return index_.at(id); }
  // nullptr: there is none.
  ServerLane* Find(PeerId id);
  const ServerLane* Find(PeerId id) const { return const_cast<ServerLanes*>(this)->Find(id); }
  // For people; also of one that is not here.
  std::string Describe(PeerId id) const;

  // The connection stands. False: it was ready, or is no lane.
  bool MarkReady(PeerId id);
  bool ready() const { return ready_ == lanes_.size(); }
  // Those that are not.
  std::string Missing() const;

 private:
  std::pmr::unsynchronized_pool_resource memory_;  // of what waits; before the lanes
  std::vector<ServerLane> lanes_;
  absl::flat_hash_map<PeerId, size_t> index_;
  size_t ready_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_SERVER_LANES_H_
