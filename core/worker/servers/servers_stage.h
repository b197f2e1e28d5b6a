// servers_stage.h - the step that crosses the network: partitions go to the servers, results come back.
//
//     ServersStage stage(options, std::move(scheduler), &sink, log);
//     Carrier* tcp = stage.AddCarrier("tcp", std::move(transport), carrier_options);
//     stage.Join(now, epoch, own_member);             // connects to all lanes of all servers
//     stage.Know(tensor);                             // its cut has come
//     stage.Start(now, operation);
//
// Or, behind a local stage, some parts of an operation, each when it is ready:
//
//     stage.UseSink(local);
//     stage.Begin(now, operation, range);  stage.Push(now, operation, part) ...     // sink->OnPartHome(operation, part)
//
// The way of a partition (states in core/worker/tensor/partition.h): it is enqueued with the scheduler plugin; when the plugin picks
// it, the payload is put into the PUSH record (small), or written into a slot that the server lent, with the record
// beside it, or left where it is, if the server reads it there; the RESULT brings or announces the bytes, and the
// partition is home. docs/protocol.md has the details, and
// this class is the worker's side of its data plane.
//
// Giving up. Aborting an operation withdraws what has not left and sends CANCEL for the rest. The operation leaves this
// stage when nothing touches its memory: its writes have ended, and the server of each partition that it may read in
// place, or whose result it may write straight into the output, has said ERROR (or the result came). A server that does
// not say so within a grace period loses its access: input and output are unregistered.
//
// Threads: none; driven by whoever drives the engine.
#ifndef BYTEPS_CORE_WORKER_SERVERS_SERVERS_STAGE_H_
#define BYTEPS_CORE_WORKER_SERVERS_SERVERS_STAGE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/rate_meter.h"
#include "core/control/control.pb.h"
#include "core/plugin/scheduler.h"
#include "core/worker/servers/carrier.h"
#include "core/worker/servers/slow_servers.h"
#include "core/worker/tensor/part_owners.h"
#include "core/worker/tensor/send_order.h"
#include "core/worker/tensor/stage.h"

namespace byteps {

struct ServersStageOptions {
  uint64_t inline_bytes = 0;  // payloads up to here travel inside the record
  uint64_t outbox_bytes = 0;  // more is not queued for one server: what waits there cannot be overtaken
  Time release_grace = 0;     // how long the servers are waited for after an operation was given up
  bool checksum = false;      // payloads that travel carry one, both ways
};

class ServersStage : public Stage, private CarrierSink {
 public:
  ServersStage(ServersStageOptions options, Scheduler scheduler, StageSink* sink, Logger* log);
  ~ServersStage() override;

  // Before Join.
  Carrier* AddCarrier(std::string name, Transport transport, CarrierOptions options);
  const std::vector<std::unique_ptr<Carrier>>& carriers() const { return carriers_; }

  // Learns the membership and connects to all lanes of all servers.
  absl::Status Join(Time now, const control::Epoch& epoch, const control::Member& self);
  // Before the first operation: who hands operations over, if it is not the engine.
  void UseSink(StageSink* sink) { sink_ = sink; }
  // Takes an operation, of which the parts of `range` (not empty) go through this worker. operation->source is set.
  void Begin(Time now, Operation* operation, PartRange range);
  // This part's bytes are at operation->source.
  void Push(Time now, Operation* operation, uint32_t part);
  // As Abort, but the cause is not here, and whoever has it has told the servers of it.
  void Withdraw(Time now, Operation* operation, const absl::Status& why);

  // Are all links ready? Until then `missing()` names who is awaited.
  bool ready() const override { return joined_ && ready_peers_ == peers_.size(); }
  std::string missing() const override;
  void Know(Tensor* tensor, std::span<const Tensor::Owed> given_up) override;
  std::string WhoIsMissing(const Operation& operation) const override;
  void AddEndpoints(std::vector<Endpoint*>* all) override;

  // What results have come at; 0: too few bytes so far.
  uint64_t bytes_per_second() const override { return meter_.bytes_per_second(); }

  const char* name() const override { return "servers"; }
  void Start(Time now, Operation* operation) override;
  void Abort(Time now, Operation* operation, const absl::Status& why) override;
  void Drop(Operation* operation) override;
  void Stop() override;
  void DropFreedBuffers() override;
  bool Run(Time now) override;
  Time NextTimer() const override;

 private:
  // One server lane.
  struct Peer {
    explicit Peer(std::pmr::memory_resource* memory) : held(memory), leaving(memory) {}
    Peer(Peer&&) = default;  // a copy would have memory of its own

    PeerId id = 0;
    Carrier* carrier = nullptr;
    std::string description;
    bool ready = false;
    std::pmr::deque<Partition*> held;  // chosen by the scheduler, not yet taken by the transport
    // Records without a write in the outbox: after how many bytes of ours each ends, and its task.
    std::pmr::deque<std::pair<uint64_t, uint64_t>> leaving;
    uint64_t queued_bytes = 0;  // of ours, ever
    bool full = false;          // its outbox; nothing is chosen for it
    size_t taken_slots = 0;     // of its slots, as of its last budget
  };

  // A write that has not ended.
  struct Write {
    Partition* partition;
    Payload payload;
  };

  // CarrierSink.
  void OnReady(Carrier* carrier, PeerId peer) override;
  void OnRecord(Carrier* carrier, PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(Carrier* carrier, uint32_t immediate, uint64_t cookie) override;
  void OnWritten(Carrier* carrier, PeerId peer, uint64_t user, int32_t code) override;
  void OnRoom(Carrier* carrier, PeerId peer) override;
  void OnPeerDown(Carrier* carrier, PeerId peer, const absl::Status& why) override;

  // Sending.
  SendOrder OrderOf(const Operation& operation) const;
  void Enqueue(Partition* partition);
  bool Pump();
  void UpdateBudget(size_t index);
  // True: posted. False: later; or with an error, never.
  bool Post(Partition* partition, Peer* peer, absl::Status* error);
  bool FarEnough() const;
  static void AddChecksum(std::span<const std::byte> payload, wire::DataHeader* header);
  // False: these are not the bytes that the server has sent; the operation has failed.
  bool Unaltered(PeerId peer, Partition* partition, std::span<const std::byte> bytes);
  bool PostPayload(Partition* partition, Peer* peer, wire::DataHeader* header, absl::Status* error);
  bool PostInPlace(Partition* partition, Peer* peer, wire::DataHeader* header, absl::Status* error);
  void PostInline(Partition* partition, Peer* peer, const wire::DataHeader& header, std::span<const std::byte> payload);
  void SendPush(Peer* peer, const wire::DataHeader& header, const Tensor& tensor, std::span<const std::byte> payload);
  void Send(Peer* peer, wire::RecordType type, std::span<const std::byte> fixed,
            std::span<const std::byte> payload = {});
  void SendCancel(const Tensor& tensor, uint64_t round, uint64_t fingerprint, uint32_t part, const absl::Status& why);
  wire::DataHeader HeaderOf(const Partition& partition) const;
  void Left(Partition* partition);
  bool SettleOutboxes();
  void EndTask(Partition* partition, int32_t code);

  // Receiving.
  void OnResult(Carrier* carrier, PeerId peer, std::span<const std::byte> body);
  void OnRound(PeerId peer, wire::RecordType type, std::span<const std::byte> body);
  void Hear(uint32_t rate);
  void Senseless(PeerId peer, const wire::DataHeader& header, const Operation& operation);
  void OnStray(Carrier* carrier, PeerId peer, const wire::DataHeader& header);
  void Landed(Carrier* carrier, PeerId peer, uint32_t immediate, Partition* partition);
  Partition* Find(PeerId peer, uint64_t key, uint64_t round, uint32_t part) const;
  uint64_t CookieOf(const Partition& partition) const;
  Partition* FindCookie(uint64_t cookie) const;

  // Ending.
  void GiveUp(Operation* operation, const absl::Status& why, bool tell_everyone);
  void Home(Partition* partition);
  void NoteTime(const Partition& partition);
  void Lost(Partition* partition);
  void MaybeLeave(Operation* operation);
  void Leave(Operation* operation);
  void Fatal(const absl::Status& why);

  Peer* FindPeer(PeerId id);
  const Peer* FindPeer(PeerId id) const;
  std::string DescribePeer(PeerId id) const;

  const ServersStageOptions options_;
  mutable Scheduler scheduler_;  // asking it for its timer is not const
  StageSink* sink_;
  Logger* const log_;

  std::pmr::unsynchronized_pool_resource memory_;  // of what peers have waiting
  std::vector<std::unique_ptr<Carrier>> carriers_;
  std::vector<Peer> peers_;
  absl::flat_hash_map<PeerId, size_t> peer_index_;
  std::vector<bps_budget> budgets_;  // beside peers_
  size_t ready_peers_ = 0;
  bool joined_ = false;
  bool stopped_ = false;
  uint32_t own_rank_ = 0;
  uint32_t workers_ = 0;
  uint64_t inline_bytes_ = 0;
  uint64_t slot_bytes_ = 0;

  absl::flat_hash_map<uint64_t, TensorName*> names_;      // by name id
  absl::flat_hash_map<uint64_t, Operation*> operations_;  // by Operation::id
  absl::flat_hash_map<uint64_t, Partition*> tasks_;       // by task: what the scheduler knows
  absl::flat_hash_map<uint64_t, Write> writes_;           // by user: writes that have not ended
  std::vector<Operation*> releasing_;                     // given up, not yet left
  uint64_t next_task_ = 1;
  RateMeter meter_;
  uint32_t agreed_rate_ = 0;  // what the scheduler was told last
  size_t queued_ = 0;         // tasks in the scheduler's queue
  size_t held_ = 0;
  // Of a tensor that is alone no more than so much is sent ahead.
  size_t rows_ahead_ = 0;
  size_t taken_slots_ = 0;  // of all peers
  Time slot_came_ = 0;      // or the tensor began
  Time held_back_until_ = kNever;
  bool pump_ = false;  // something may go that could not
  SlowServers slow_servers_;
  Time now_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_SERVERS_STAGE_H_
