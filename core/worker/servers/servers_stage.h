// servers_stage.h - the step that crosses the network: partitions go to the servers, results come back.
//
//     ServersStage stage(options, std::move(scheduler), log);
//     stage.UseSink(&sink);
//     Carrier* tcp = stage.AddCarrier("tcp", std::move(transport), carrier_options);
//     stage.Join(now, epoch, own_member);             // connects to all lanes of all servers
//     stage.OnAssigned(tensor, given_up);             // its cut has come
//     stage.Begin(now, operation, areas, range);  stage.Push(now, operation, part, source, target) ...
//
// The way of a partition (states in core/worker/servers/partition.h): it is enqueued with the scheduler plugin
// (push_queue.h); when the plugin picks it, the payload is put into the PUSH record (small), or written into a slot
// that the server lent, with the record beside it, or left where it is, if the server reads it there (push_sender.h);
// the RESULT brings or announces the bytes, and the partition is home. docs/protocol.md has the details; this class is
// the worker's side of its data plane.
//
// Giving up. Aborting a transfer withdraws what has not left and sends CANCEL for the rest. The operation leaves this
// stage when nothing touches its memory: its writes have ended, and the server of each partition that it may read in
// place, or whose result it may write straight into the output, has said ERROR (or the result came). A server that does
// not say so within a grace period loses its access: input and output are unregistered.
//
// Threads: none; driven by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_SERVERS_SERVERS_STAGE_H_
#define BYTEPS_CORE_WORKER_SERVERS_SERVERS_STAGE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/rate_meter.h"
#include "core/control/control.pb.h"
#include "core/plugin/scheduler.h"
#include "core/worker/servers/carrier.h"
#include "core/worker/servers/push_queue.h"
#include "core/worker/servers/push_sender.h"
#include "core/worker/servers/server_lanes.h"
#include "core/worker/servers/slow_servers.h"
#include "core/worker/servers/transfers.h"
#include "core/worker/tensor/send_order.h"
#include "core/worker/tensor/stage.h"

namespace byteps {

struct ServersStageOptions {
  uint64_t inline_bytes = 0;  // payloads up to here travel inside the record
  uint64_t outbox_bytes = 0;  // more is not queued for one server: what waits there cannot be overtaken
  Time release_grace = 0;     // how long the servers are waited for after an operation was given up
  bool checksum = false;      // payloads that travel carry one, both ways
  bool gpu_direct = false;    // transports that can read and write memory of GPUs where it is
};

class ServersStage : public Stage, private CarrierSink, private PushQueueSink {
 public:
  ServersStage(ServersStageOptions options, Scheduler scheduler, Logger* log);
  ~ServersStage() override;

  // Before Join.
  Carrier* AddCarrier(std::string name, Transport transport, CarrierOptions options);
  const std::vector<std::unique_ptr<Carrier>>& carriers() const { return carriers_; }

  // Learns the membership and connects to all lanes of all servers.
  absl::Status Join(Time now, const control::Epoch& epoch, const control::Member& self);

  const char* name() const override { return "servers"; }
  bool TakesDevice(const Operation& operation, const Areas& areas) override;
  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override;
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override;
  uint32_t PartAt(const Operation& operation, uint32_t turn) const override;
  void Abort(Time now, Operation* operation, const absl::Status& why) override;
  void Withdraw(Time now, Operation* operation, const absl::Status& why) override;
  void Drop(Operation* operation) override;
  void Stop() override;
  void DropFreedBuffers() override;
  bool Run(Time now) override;
  Time NextTimer() const override;

  bool ready() const override { return joined_ && lanes_.ready(); }
  std::string missing() const override { return lanes_.Missing(); }
  void OnAssigned(Tensor* tensor, std::span<const Tensor::Owed> given_up) override;
  std::string WhoIsMissing(const Operation& operation) const override;
  uint64_t bytes_per_second() const override { return meter_.bytes_per_second(); }
  void AddEndpoints(std::vector<Endpoint*>* all) override;

 private:
  // CarrierSink.
  void OnReady(Carrier* carrier, PeerId peer) override;
  void OnRecord(Carrier* carrier, PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(Carrier* carrier, uint32_t immediate, uint64_t cookie) override;
  void OnWritten(Carrier* carrier, PeerId peer, uint64_t user, int32_t code) override;
  void OnRoom(Carrier* carrier, PeerId peer) override;
  void OnPeerDown(Carrier* carrier, PeerId peer, const absl::Status& why) override;

  // PushQueueSink.
  void OnPostFailed(Partition* partition, const absl::Status& why) override;
  void OnSchedulerFailed(const absl::Status& why) override { Fatal(why); }

  SendOrder OrderOf(const Transfer& transfer) const;

  // Results.
  void OnResult(Carrier* carrier, PeerId peer, std::span<const std::byte> body);
  void OnRound(PeerId peer, wire::RecordType type, std::span<const std::byte> body);
  void OnStrayResult(Carrier* carrier, PeerId peer, const wire::DataHeader& header);
  void TakeLanded(Carrier* carrier, PeerId peer, uint32_t immediate, Partition* partition);
  // False: these are not the bytes that the server has sent; the transfer has failed.
  bool CheckResult(PeerId peer, Partition* partition, std::span<const std::byte> bytes);
  void ProtocolError(PeerId peer, const wire::DataHeader& header, const Operation& operation);
  // The partition that awaits an answer from this peer in this round; nullptr if it is over.
  Partition* Find(PeerId peer, uint64_t key, uint64_t round, uint32_t part) const;

  // Ending.
  void GiveUp(Transfer* transfer, const absl::Status& why, bool tell_everyone);
  // `on_host`: where the result is that belongs into memory of a GPU, and has come by a way of the host's; nullptr: it
  // is where it was wanted.
  void FinishPart(Partition* partition, const std::byte* on_host = nullptr);
  void FailPart(Partition* partition);
  void NoteTime(const Partition& partition);
  void MaybeLeave(Transfer* transfer);
  void Remove(Transfer* transfer);
  void Release(Time now);
  void Fatal(const absl::Status& why);

  const ServersStageOptions options_;
  Logger* const log_;
  std::vector<std::unique_ptr<Carrier>> carriers_;
  ServerLanes lanes_;
  Transfers transfers_;
  PushSender sender_;
  PushQueue queue_;
  std::vector<Transfer*> releasing_;                  // given up, not yet left
  absl::flat_hash_map<uint64_t, TensorName*> names_;  // by name id
  RateMeter meter_;
  SlowServers slow_servers_;
  bool joined_ = false;
  bool stopped_ = false;
  uint32_t own_rank_ = 0;
  uint32_t workers_ = 0;
  uint64_t inline_bytes_ = 0;
  std::vector<PeerId> asked_;  // of TakesDevice
  Time now_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_SERVERS_STAGE_H_
