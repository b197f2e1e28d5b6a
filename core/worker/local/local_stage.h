// local_stage.h - the step within a host: its workers reduce among themselves, each a slice, in each other's memory.
//
//     LocalStage stage(options, std::move(scheduler), std::move(transport), endpoint_options, log);
//     stage.UseSink(&sink);
//     stage.UseNext(&servers);                     // if there are other hosts
//     stage.Join(now, epoch, own_member);          // connects to the others of this host
//     stage.OnAssigned(tensor, given_up);          // its key has come
//     stage.Begin(now, operation, areas, all);  stage.Push(now, operation, part, source, target) ...
//
// The way of an operation (states and end records in core/worker/local/local_round.h):
//
//   1. When all its parts were pushed, every member sends every other an OFFER. A small tensor's bytes are in it; of a
//   large one, keys that let the others read
//      the source and write the target.
//   2. When all offers are there, they are compared: every member sees a disagreement alike. Small: every member folds
//   all
//      sources by itself, and is done. Large: every member has one slice of the tensor (64-byte borders), reads it from
//      all sources, block by block, folds it in rank order, and writes it into all targets.
//   3. DONE to every member. When the slices of all are done, so is the operation.
//
// With other hosts, slices are runs of the tensor's parts (core/worker/tensor/part_owners.h), and the way of a part
// goes further: its owner folds it into its own target, the next stage takes it from there, as the host's contribution,
// and brings the result back to the same place; then the owner writes it into all other targets. A small tensor has one
// owner, its leader, to whom alone the bytes are sent, and whose DONE has the result.
//
// A block is a step of the engine. What is done next is the scheduler plugin's choice (core/worker/local/local_work.h).
//
// In place is safe without a copy: a byte has one owner, which reads it from all before it writes it to any.
//
// How the others reach our memory, and we theirs, is described in core/worker/local/local_memory.h.
//
// Giving up. A member that fails a round sends GIVE_UP to every other; these fail it too and send GIVE_UP themselves.
// An operation leaves when the end records of all are there. A member that sends none within a grace period loses its
// access to our memory (unreg is the fence). The stage behind it tells the servers: the member that detected the
// failure cancels all parts there. A member that is lost while operations are in flight is fatal: Stop ends all access.
// When a member's memory cannot be reached any more, its own error may still be under way: it is waited for during a
// grace period that is shorter than the wait for the coordinator's.
//
// Threads: none; driven by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_STAGE_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
#include "core/worker/local/local_offers.h"
#include "core/worker/local/local_role.h"
#include "core/worker/local/local_round.h"
#include "core/worker/local/local_rounds.h"
#include "core/worker/local/local_work.h"
#include "core/worker/local/neighbours.h"
#include "core/worker/tensor/stage.h"

namespace byteps {

struct LocalStageOptions {
  Time release_grace = 0;  // how long the others are waited for after an operation was given up
};

class LocalStage : public Stage, private StageSink, private EndpointHandler, private LocalWorkSink {
 public:
  // The transport's capabilities must include what Usable asks for.
  LocalStage(LocalStageOptions options, Scheduler scheduler, Transport transport, EndpointOptions endpoint,
             Logger* log);
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

  // There are other hosts, and `next` leads to them.
  void UseNext(Stage* next) override;
  // Learns who the others of this host are, and connects to them.
  absl::Status Join(Time now, const control::Epoch& epoch, const control::Member& self);
  bool ready() const override { return joined_ && neighbours_->ready(); }
  std::string missing() const override { return neighbours_->Missing(); }
  void OnAssigned(Tensor* tensor, std::span<const Tensor::Owed> given_up) override;
  std::string WhoIsMissing(const Operation& operation) const override;
  void AddEndpoints(std::vector<Endpoint*>* all) override;

  // For a stage before this one that works with the same workers: records between the two, in order, and who they are.
  struct SideRecord {
    size_t index;  // of the sender, among the neighbours
    wire::RecordType type;
    std::vector<std::byte> body;
  };
  void SendSide(size_t index, wire::RecordType type, std::span<const std::byte> fixed,
                std::span<const std::byte> payload) {
    if (!stopped_) Send(index, type, fixed, payload);
  }
  bool has_side_records() const { return !side_records_.empty(); }
  std::deque<SideRecord> TakeSideRecords() { return std::exchange(side_records_, {}); }
  const Neighbours& neighbours() const { return *neighbours_; }
  bool beyond() const { return next_ != nullptr; }
  // Has this worker taken part in this round here?
  bool Submitted(uint64_t name_id, uint64_t round) const { return rounds_.Submitted(name_id, round); }
  // This round has failed before this stage, and whoever is behind it knows. Its operation ends, now or when it begins;
  // the others hear `why` in these words. Ignored if it is over here.
  void EndRound(Time now, uint64_t name_id, uint64_t round, const absl::Status& why);

  const char* name() const override { return "local"; }
  // `range` must be all parts: every member reduces its own share of the whole.
  bool TakesDevice(const Operation& operation, const Areas& areas) override;
  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override;
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override;
  void Abort(Time now, Operation* operation, const absl::Status& why) override;
  void Withdraw(Time now, Operation* operation, const absl::Status& why) override;
  void Drop(Operation* operation) override;
  void Stop() override;
  void DropFreedBuffers() override;
  bool Run(Time now) override;
  Time NextTimer() const override;

  // One line per member and round: for logs and tests.
  std::string Describe() const;

 private:
  // Where a failure began.
  enum class Cause { kHere, kNeighbour, kNextStage };

  // EndpointHandler.
  void OnReady(PeerId peer) override;
  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(uint32_t) override {}
  void OnWritten(PeerId, uint64_t, int32_t) override {}
  void OnRoom(PeerId) override {}
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnRemoved(PeerId) override {}

  // StageSink, of the next stage.
  void OnStageDone(Operation* operation, const absl::Status& outcome) override;
  void OnStageFatal(const absl::Status& why, uint32_t member) override { sink_->OnStageFatal(why, member); }
  void OnPartHome(Operation* operation, uint32_t part, const Payload& result) override;
  void OnGivingUp(Operation* operation, const absl::Status& why, bool told) override;

  // LocalWorkSink.
  void OnPiece(LocalRound* round) override;
  void OnPieceFailed(LocalRound* round, int32_t code, size_t culprit) override;
  void OnWorkFatal(const absl::Status& why) override;

  // Offering.
  void OnOffer(size_t index, std::span<const std::byte> body);
  void Send(size_t index, wire::RecordType type, std::span<const std::byte> fixed,
            std::span<const std::byte> payload = {});
  void SendEnd(const LocalRound& round, wire::RecordType type, int32_t code, std::span<const std::byte> rest);
  void SendOffer(LocalRound* round);
  void Proceed(LocalRound* round);

  // Small tensors.
  bool FoldSmall(LocalRound* round);
  bool CopyFrom(LocalRound* round, size_t index);
  void ProceedSmall(LocalRound* round);

  // Large ones.
  void BeginWork(LocalRound* round);
  void Contribute(LocalRound* round, PartRange parts, bool all_ready);
  bool AddPiece(LocalRound* round, LocalPiece::Kind kind, Slice* bytes);
  void NextPiece(LocalRound* round);
  void PushOn(const LocalRound& round, uint32_t part);
  static LocalPiece PieceOf(const LocalRound& round, uint32_t part, LocalPiece::Kind kind);
  void FinishShare(LocalRound* round);

  // Ending.
  void OnEnd(size_t index, wire::RecordType type, std::span<const std::byte> body);
  void GiveUp(LocalRound* round, const absl::Status& why, const absl::Status& told, Cause cause);
  absl::Status ReasonForOthers(const absl::Status& why) const;
  void FailSoon(LocalRound* round, const absl::Status& why, Time at);
  void Unlist(LocalRound* round);
  void MaybeLeave(LocalRound* round);
  void Leave(LocalRound* round);
  void Lose(size_t index, const absl::Status& why);
  // `member`: of the job, whose loss it is; 0: none's.
  void Fatal(const absl::Status& why, uint32_t member = 0);
  void ProtocolError(size_t index, const char* what);

  const LocalStageOptions options_;
  Logger* const log_;
  const bps_transport_caps caps_;
  Stage* next_ = nullptr;  // if there are other hosts
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<Neighbours> neighbours_;
  std::unique_ptr<LocalRole> role_;      // from Join on
  std::unique_ptr<LocalMemory> memory_;  // likewise
  std::unique_ptr<LocalOffers> offers_;  // likewise
  LocalWork work_;
  bool joined_ = false;
  bool stopped_ = false;
  std::vector<uint32_t> group_sizes_;  // within the set
  uint64_t inline_bytes_ = 0;

  LocalRounds rounds_;
  std::deque<SideRecord> side_records_;
  std::vector<LocalRound*> releasing_;
  std::vector<LocalRound*> ready_;     // for Run: every member has offered, or it was refused before it began
  std::vector<LocalRound*> reaching_;  // every member has offered; some memory cannot be reached yet
  std::vector<LocalRound*> failing_;   // some memory cannot be reached any more
  size_t in_flight_ = 0;               // operations
  Time now_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_STAGE_H_
