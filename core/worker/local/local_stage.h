// local_stage.h - the step within a host: its workers reduce among themselves, each a slice, in each other's memory.
//
//     LocalStage stage(options, std::move(scheduler), std::move(transport), endpoint_options, &sink, log);
//     stage.UseServers(&servers);                  // if there are other hosts
//     stage.Join(now, epoch, own_member);          // connects to the others of this host
//     stage.Know(tensor, given_up);                // its key has come
//     stage.Start(now, operation);
//
// The way of an operation (states and last words in core/worker/local/local_round.h):
//
//   1. Everybody sends everybody an OFFER. A small tensor's bytes are in it; of a large one, keys that let the others read
//      the input and write the output.
//   2. When all offers are there, they are compared: a disagreement is seen by everybody alike. Small: everybody folds all
//      inputs by himself, and is done. Large: everybody has one slice of the tensor (64-byte borders), reads it from
//      everybody's input, block by block, folds it in rank order, and writes it into everybody's output.
//   3. DONE to everybody. When the slices of all are done, so is the operation.
//
// With other hosts, slices are runs of the tensor's parts (core/worker/tensor/part_owners.h), and the way of a part goes further: its
// owner folds it into his own output, the servers stage pushes it from there, as the host's contribution, and brings the
// result back to the same place; then the owner writes it into everybody else's output. A small tensor has one owner, its
// leader, to whom alone the bytes are sent, and whose DONE has the result.
//
// A block is a step of the engine. What is done next is the scheduler plugin's choice (core/worker/local/local_work.h).
//
// In place is safe without a copy: a byte has one owner, who reads it from all before he writes it to any.
//
// How the others reach our memory, and we theirs, is said in core/worker/local/local_memory.h.
//
// Giving up. Who fails a round says GIVE_UP to everybody, who fail it too and say so themselves; an operation leaves when
// everybody has said his last word. From one who does not within a grace period, the memory is taken away (unreg is the
// fence). Servers hear of it from him with whom it began, for all parts, or with whom it is. A member that is lost while
// operations are in flight is fatal: Stop takes all memory away. Whose memory is gone before his word is there gets a moment
// to say why.
//
// Threads: none; driven by whoever drives the engine.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_STAGE_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/control/control.pb.h"
#include "core/link/endpoint.h"
#include "core/plugin/scheduler.h"
#include "core/plugin/transport.h"
#include "core/wire/wire.h"
#include "core/worker/local/local_memory.h"
#include "core/worker/local/local_role.h"
#include "core/worker/local/local_round.h"
#include "core/worker/local/local_rounds.h"
#include "core/worker/local/local_work.h"
#include "core/worker/local/neighbours.h"
#include "core/worker/servers/servers_stage.h"
#include "core/worker/tensor/stage.h"

namespace byteps {

struct LocalStageOptions {
  Time release_grace = 0;  // how long the others are waited for after an operation was given up
};

class LocalStage : public Stage, private StageSink, private EndpointHandler, private LocalWorkSink {
 public:
  // The transport's capabilities must include what Usable asks for.
  LocalStage(LocalStageOptions options, Scheduler scheduler, Transport transport, EndpointOptions endpoint,
             StageSink* sink, Logger* log);
  ~LocalStage() override;

  // Can workers reduce over a transport of these capabilities? If not, why.
  static absl::Status Usable(const bps_transport_caps& caps);
  // The largest payload that fits into an offer.
  static uint64_t MaxInline(const bps_transport_caps& caps);

  // The ranks that a worker reduces with, itself included; size 0: the epoch lacks it.
  struct Set {
    uint32_t first = 0;
    uint32_t size = 0;
  };
  static Set SetOf(const control::Epoch& epoch, const control::Member& self);

  // Before Join: there are other hosts, and this leads to them.
  void UseServers(ServersStage* servers);
  // Learns who the others of this host are, and connects to them.
  absl::Status Join(Time now, const control::Epoch& epoch, const control::Member& self);
  bool ready() const override { return joined_ && neighbours_->ready(); }
  std::string missing() const override { return neighbours_->Missing(); }
  void Know(Tensor* tensor, std::span<const Tensor::Owed> given_up) override;
  std::string WhoIsMissing(const Operation& operation) const override;
  void AddEndpoints(std::vector<Endpoint*>* all) override;

  const char* name() const override { return "local"; }
  void Start(Time now, Operation* operation) override;
  void Abort(Time now, Operation* operation, const absl::Status& why) override;
  void Drop(Operation* operation) override;
  void Stop() override;
  void DropFreedBuffers() override;
  bool Run(Time now) override;
  Time NextTimer() const override;

  // One line per member and round: for logs and tests.
  std::string Describe() const;

 private:
  // Where a failure began.
  enum class Cause { kHere, kNeighbour, kServers };

  // EndpointHandler.
  void OnReady(PeerId peer) override;
  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(uint32_t) override {}
  void OnWritten(PeerId, uint64_t, int32_t) override {}
  void OnRoom(PeerId) override {}
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnRemoved(PeerId) override {}

  // StageSink, of the servers stage.
  void OnStageDone(Operation* operation, const absl::Status& outcome) override;
  void OnStageFatal(const absl::Status& why, uint32_t member) override { sink_->OnStageFatal(why, member); }
  void OnPartHome(Operation* operation, uint32_t part) override;
  void OnGivingUp(Operation* operation, const absl::Status& why, bool heard) override;

  // LocalWorkSink.
  void OnPiece(LocalRound* round) override;
  void OnPieceFailed(LocalRound* round, int32_t code, size_t culprit) override;
  void OnWorkFatal(const absl::Status& why) override;

  // Offering.
  void OnOffer(size_t index, std::span<const std::byte> body);
  absl::Status MakeOffer(LocalRound* round);
  // Keys for this one, of which their size is returned. UNAVAILABLE: it is lost.
  absl::StatusOr<size_t> ShowTo(size_t index, const LocalRound& round, uint8_t* keys);
  void Send(size_t index, wire::RecordType type, std::span<const std::byte> fixed,
            std::span<const std::byte> payload = {});
  void SendWord(const LocalRound& round, wire::RecordType type, int32_t code, std::span<const std::byte> rest);
  void Proceed(LocalRound* round);
  absl::Status Compare(const LocalRound& round) const;

  // Small tensors.
  bool FoldSmall(LocalRound* round);
  bool CopyFrom(LocalRound* round, size_t index);
  void ProceedSmall(LocalRound* round);

  // Large ones.
  void BeginWork(LocalRound* round);
  void Contribute(LocalRound* round, PartRange parts, bool all_ready);
  void NextPiece(LocalRound* round);
  LocalPiece PieceOf(const LocalRound& round, uint32_t part, LocalPiece::Kind kind) const;
  void FinishShare(LocalRound* round);

  // Ending.
  void OnWord(size_t index, wire::RecordType type, std::span<const std::byte> body);
  void GiveUp(LocalRound* round, const absl::Status& why, const absl::Status& told, Cause cause);
  absl::Status Told(const absl::Status& why) const;
  void MaybeLeave(LocalRound* round);
  void Leave(LocalRound* round);
  void Lose(size_t index, const absl::Status& why);
  // `member`: of the job, whose loss it is; 0: nobody's.
  void Fatal(const absl::Status& why, uint32_t member = 0);
  void Senseless(size_t index, const char* what);
  std::string Names(const LocalRound& round, bool LocalVoice::*has) const;

  const LocalStageOptions options_;
  StageSink* const sink_;
  Logger* const log_;
  const bps_transport_caps caps_;
  ServersStage* servers_ = nullptr;  // behind this stage, if there are other hosts
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<Neighbours> neighbours_;
  std::unique_ptr<LocalRole> role_;      // from Join on
  std::unique_ptr<LocalMemory> memory_;  // likewise
  LocalWork work_;
  bool joined_ = false;
  bool stopped_ = false;
  std::vector<uint32_t> group_sizes_;  // within the set
  uint64_t inline_bytes_ = 0;

  LocalRounds rounds_;
  std::vector<const void*> inputs_;  // of FoldSmall: kept for its memory
  std::vector<LocalRound*> releasing_;
  std::vector<LocalRound*> reaching_;  // everybody has offered; some of it is not to be reached yet
  std::vector<LocalRound*> doomed_;    // some of it cannot be reached any more
  size_t in_flight_ = 0;               // operations
  Time now_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_STAGE_H_
