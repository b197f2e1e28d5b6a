// local_stage.h - the step within a host: its workers reduce among themselves, each a slice, in each other's memory.
//
//     LocalStage stage(options, std::move(scheduler), std::move(transport), endpoint_options, &sink, log);
//     stage.Join(now, epoch, own_member);          // connects to the others of this host
//     stage.Know(tensor);                          // its key has come
//     stage.Start(now, operation);
//
// The way of an operation (states and last words in core/local_round.h):
//
//   1. Everybody sends everybody an OFFER. A small tensor's bytes are in it; of a large one, keys that let the others read
//      the input and write the output.
//   2. When all offers are there, they are compared: a disagreement is seen by everybody alike. Small: everybody folds all
//      inputs by himself, and is done. Large: everybody has one slice of the tensor (64-byte borders), reads it from
//      everybody's input, block by block, folds it in rank order, and writes it into everybody's output.
//   3. DONE to everybody. When the slices of all are done, so is the operation.
//
// A block is a step of the engine. What is folded next is the scheduler plugin's choice: it has one task for each
// operation, the next piece of its slice.
//
// In place is safe without a copy: a byte has one owner, who reads it from all before he writes it to any.
//
// Memory from the library's own buffers is mapped by the others, who read and write it without a system call; it stays
// registered until it is freed. Any other is registered for the operation, and copied from and to, block by block.
//
// Where the system does not let the others read our memory (it is tried when we meet), a large tensor is shown as a copy
// in memory of the transport's, and the result copied out of it.
//
// Giving up. Who fails a round says GIVE_UP to everybody, who fail it too and say so themselves; an operation leaves when
// everybody has said his last word. From one who does not within a grace period, the memory is taken away (unreg is the
// fence). A member that is lost while operations are in flight is fatal: Stop takes all memory away.
//
// Threads: none; driven by whoever drives the engine.
#ifndef BYTEPS_CORE_LOCAL_STAGE_H_
#define BYTEPS_CORE_LOCAL_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/block_fold.h"
#include "core/buffer_regions.h"
#include "core/control.pb.h"
#include "core/endpoint.h"
#include "core/local_round.h"
#include "core/log.h"
#include "core/region.h"
#include "core/scheduler.h"
#include "core/stage.h"
#include "core/staging_pool.h"
#include "core/transport.h"
#include "core/wire.h"

namespace byteps {

struct LocalStageOptions {
  Time release_grace = 0;  // how long the others are waited for after an operation was given up
};

// Bytes [first, last) of a tensor: the slice of the index-th of `count` members.
struct Slice {
  uint64_t first = 0;
  uint64_t last = 0;
};
Slice SliceOf(uint64_t bytes, size_t index, size_t count);

class LocalStage : public Stage, private EndpointHandler {
 public:
  // The transport's capabilities must include what Usable asks for.
  LocalStage(LocalStageOptions options, Scheduler scheduler, Transport transport, EndpointOptions endpoint,
             StageSink* sink, Logger* log);
  ~LocalStage() override;

  // Can workers reduce over a transport of these capabilities? If not, why.
  static absl::Status Usable(const bps_transport_caps& caps);
  // The largest payload that fits into an offer.
  static uint64_t MaxInline(const bps_transport_caps& caps);

  // Learns who the others of this host are, and connects to them.
  absl::Status Join(Time now, const control::Epoch& epoch, const control::Member& self);
  bool ready() const override { return joined_ && reached_members_ == members_.size(); }
  std::string missing() const override;
  void Know(Tensor* tensor) override;
  std::string WhoIsMissing(const Operation& operation) const override;
  std::vector<Endpoint*> endpoints() override;

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
  struct Member {
    uint32_t rank = 0;
    std::string description;
    bool ready = false;                    // linked
    bool reached = false;                  // and it has said whether it can reach our memory
    std::optional<wire::ProbeBody> probe;  // can we reach its memory? Not answered yet
    Time probe_until = 0;
    absl::Status lost;  // why it cannot be reached any more
  };
  // What is known of a name's rounds.
  struct Name {
    uint64_t next = 0;  // rounds below are over here
    std::map<uint64_t, LocalRound> rounds;
  };

  // EndpointHandler.
  void OnReady(PeerId peer) override;
  void OnRecord(PeerId peer, wire::RecordType type, std::span<const std::byte> body) override;
  void OnLanded(uint32_t) override {}
  void OnWritten(PeerId, uint64_t, int32_t) override {}
  void OnRoom(PeerId) override {}
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnRemoved(PeerId) override {}

  // The number of a member at its endpoint, and back.
  static PeerId PeerOf(size_t index) { return static_cast<PeerId>(index + 1); }
  static size_t IndexOf(PeerId peer) { return peer - 1; }

  // nullptr: that round is over here.
  LocalRound* FindOrMake(uint64_t key, uint64_t round);
  LocalRound* FindOf(const Operation& operation) const;

  // Meeting.
  absl::Status Probe(size_t index);
  void OnProbe(size_t index, std::span<const std::byte> body);
  void OnReach(size_t index, std::span<const std::byte> body);
  bool AnswerProbes();

  // Offering.
  void OnOffer(size_t index, std::span<const std::byte> body);
  absl::Status Offer(LocalRound* round);
  absl::Status Show(LocalRound* round);
  void Send(size_t index, wire::RecordType type, std::span<const std::byte> fixed,
            std::span<const std::byte> payload = {});
  void SendWord(const LocalRound& round, wire::RecordType type, const absl::Status& why);
  void Proceed(LocalRound* round);
  absl::Status Compare(const LocalRound& round) const;

  // Working.
  void FoldInline(LocalRound* round);
  void BeginWork(LocalRound* round);
  // False: not yet, or not at all: then `error` says so.
  bool Reach(LocalRound* round, absl::Status* error);
  bool MapSpan(MemberSpan* span, size_t bytes);
  void LetGo(LocalRound* round);
  void EnqueuePiece(LocalRound* round);
  bool Work();
  bool PickPiece();
  int32_t FoldBlock(LocalRound* round, uint64_t bytes, size_t* culprit);
  void EndPiece(int32_t code);
  void FinishSlice(LocalRound* round);

  // Ending.
  void OnWord(size_t index, wire::RecordType type, std::span<const std::byte> body);
  void GiveUp(LocalRound* round, const absl::Status& why, const absl::Status& told);
  absl::Status Told(const absl::Status& why) const;
  void WithdrawTask(LocalRound* round);
  void MaybeLeave(LocalRound* round);
  void Leave(LocalRound* round);
  void Lose(size_t index, const absl::Status& why);
  void Senseless(size_t index, const char* what);
  std::string Names(const LocalRound& round, bool LocalVoice::*has) const;

  const LocalStageOptions options_;
  mutable Scheduler scheduler_;  // asking it for its timer is not const
  StageSink* const sink_;
  Logger* const log_;
  const bps_transport_caps caps_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<BlockFold> fold_;

  std::vector<Member> members_;  // of this host, in rank order, ourselves included
  size_t own_ = 0;               // our index
  size_t reached_members_ = 0;
  size_t probes_ = 0;         // to be answered
  uint64_t probe_value_ = 0;  // what probes read
  Region probe_region_;       // it
  bool staged_ = false;       // somebody cannot reach our memory
  std::unique_ptr<StagingPool> staging_;
  std::unique_ptr<BufferRegions> buffers_;
  bool joined_ = false;
  bool stopped_ = false;
  std::vector<uint32_t> group_sizes_;  // within the set
  uint64_t inline_bytes_ = 0;

  absl::flat_hash_map<uint64_t, std::unique_ptr<Name>> names_;  // by name id
  absl::flat_hash_map<uint64_t, LocalRound*> tasks_;            // by task: what the scheduler knows
  std::vector<LocalRound*> releasing_;
  std::vector<LocalRound*> reaching_;  // everybody has offered; some of it is not to be reached yet
  LocalRound* current_ = nullptr;      // whose piece is being folded
  size_t in_flight_ = 0;               // operations
  size_t queued_ = 0;                  // tasks in the scheduler's queue
  uint64_t next_task_ = 1;
  bool pick_ = false;    // the scheduler may have something that it had not
  bool halted_ = false;  // a member is lost: nothing more is folded
  Time now_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_LOCAL_STAGE_H_
