// engine.h - the worker's heart: takes operations, moves them from stage to stage, ends each exactly once.
//
//     Engine engine(options, &handler, &log);
//     engine.UseAlone();                                        // a worker alone, or one or both of:
//     engine.UseServers(std::move(scheduler)).AddCarrier("tcp", std::move(transport), carrier_options);
//     engine.UseLocal(std::move(scheduler), std::move(transport), endpoint_options);
//     engine.Join(now, epoch, own_member);
//
//     Tensor* tensor = *engine.tensors().Declare(name, dtype, shape);      // any thread
//     absl::Status refused = engine.Admit(submission);                     // any thread
//     engine.Submit(now, submission);
//     while (engine.Poll(now)) ...
//     for (Completion& completion : engine.TakeCompletions()) completion.Run();
//
// The subtle parts:
//
// Step function. The engine has no thread, no clock and no socket. The session drives it in real time, the simulator in
//                virtual time; both do the same. Everything but tensors() and Admit is called by one thread at a time.
// Stages.        The coordinator decides which of the stages that were prepared the operations go through; Join links
//                them, with those of UseStage between them, and lets the others go. The engine begins and pushes every
//                operation at the first stage, and hears of its end from there.
// Completions.   Requests do not end inside Poll: they are handed out by TakeCompletions, so that the thread that
//                drives decides where callbacks run, and may do so without holding the engine.
// Failure.       After Fail, or when a stage cannot go on, every operation ends with the first cause, input and output
//                have ended for good, and Submit fails what comes later. failure() tells.
// Given up.      A submission with a cause in `given_up` uses its round up without taking part: the others hear of it,
//                and it ends here at once, or behind the operation of its name that is in flight, whose place it waits
//                for. Nothing else is admitted under the name before.
// Deadlines.     The servers know an operation's deadline and who is missing, so they speak first; the engine's own
//                clock is the fallback, kDeadlineGrace later. What never left this worker ends at its deadline.
#ifndef BYTEPS_CORE_WORKER_ENGINE_ENGINE_H_
#define BYTEPS_CORE_WORKER_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/plugin/scheduler.h"
#include "core/worker/collectives/collectives.h"
#include "core/worker/collectives/path_costs.h"
#include "core/worker/engine/assignments.h"
#include "core/worker/engine/root_copies.h"
#include "core/worker/local/local_stage.h"
#include "core/worker/servers/servers_stage.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/stage.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {

// What the engine asks of the control plane.
class EngineHandler {
 public:
  virtual ~EngineHandler() = default;
  // To the coordinator; the answers come by OnAssignment.
  virtual void OnDeclare(const std::vector<control::TensorSpec>& tensors) = 0;
  // To the coordinator: these members are to hear where other workers reach this one.
  virtual void OnTellPeers(const std::vector<uint32_t>& members, const control::Lane& lane) {
    (void)members, (void)lane;
  }
  // It cannot go on without `member` (0: not known whom), or was told so by a server. The coordinator may know better
  // what has become of it; its word is waited for (EngineOptions::fatal_grace) before OnFailed.
  virtual void OnLost(uint32_t member, const absl::Status& why) { (void)member, (void)why; }
  // The engine cannot go on. Said once; not for failures that came in by Fail.
  virtual void OnFailed(const absl::Status& why) = 0;
};

struct EngineOptions {
  ServersStageOptions servers;
  LocalStageOptions local;
  // A lost server is often the echo of something that the coordinator knows better: how long its word is waited for
  // before the loss itself is the cause.
  Time fatal_grace = 0;
  // The log names an operation that takes longer, and for whom it waits; 0: never.
  Time stall_warning = 0;
};

class Engine : private StageSink, private CollectivesSink, private AssignmentsSink {
 public:
  // After the deadline; see above.
  static constexpr Time kDeadlineGrace = 2'000'000'000;

  Engine(EngineOptions options, EngineHandler* handler, Logger* log);
  ~Engine() override;

  // Each at most once, the first without the others.
  void UseAlone();
  ServersStage& UseServers(Scheduler scheduler);
  void UseLocal(Scheduler scheduler, Transport transport, EndpointOptions endpoint);
  // A stage more, before the one of this name; "": before all others. Join puts it there, if there is such a one.
  // Behind Join a stage may come before all others only, and must let operations pass that it has not seen begin.
  void UseStage(std::string before, std::unique_ptr<Stage> stage);

  // Of the workers of this host; nullptr: there is no such stage. From Join on.
  LocalStage* neighbours() const { return neighbours_; }

  // Beside any of these: operations among workers.
  void UseCollectives(CollectivesOptions options, PeerLinks::Open open);
  // nullptr: there are none.
  Collectives* collectives() const { return collectives_.get(); }

  // The membership. `member`: this worker's number.
  absl::Status Join(Time now, const control::Epoch& epoch, uint32_t member);
  // Can operations flow? (Before, they wait.) If not, `missing` names who is awaited.
  bool ready() const;
  std::string missing() const;

  TensorTable& tensors() { return tensors_; }
  // Checks a submission and takes its name's place in flight, or, of a round that is given up, waits for it. Not OK:
  // refused, nothing happened. Any thread.
  absl::Status Admit(const Submission& asked) const;
  // Gives the place back of one that was admitted and is not submitted. Any thread.
  static void Withdraw(const Submission& asked);

  // Takes an admitted submission. Its request ends, whatever happens; if this throws, by then or in Fail.
  void Submit(Time now, Submission asked);
  // Gives an operation up, unless it has ended. `cause`: what the other ranks hear; OK: that its caller wants it so.
  void Cancel(Time now, const Request* request, const absl::Status& cause = {});
  // Gives all up.
  void CancelAll(Time now, const absl::Status& why);
  void OnAssignment(Time now, const control::Assignment& assignment);
  // Some of the library's own buffers were freed.
  void DropFreedBuffers() {
    if (!failure_.ok()) return;
    for (const std::unique_ptr<Stage>& stage : stages_) stage->DropFreedBuffers();
  }
  // Ends everything with this cause.
  void Fail(Time now, const absl::Status& why);
  // Behind Fail: gives back what the stages hold, and what they have of GPUs.
  void DropStages();

  // One round of progress. True if anything happened.
  bool Poll(Time now);
  // When Poll must be called although nothing arrives; INT64_MAX: never.
  Time NextTimer() const;
  std::vector<Completion> TakeCompletions() { return std::exchange(completions_, {}); }
  // Appends them; how many there were.
  size_t TakeCompletions(std::vector<Completion>* to);

  // Everything that was said to others has left the outboxes.
  bool Sent();

  const absl::Status& failure() const { return failure_; }
  size_t in_flight() const {
    return operations_.size() + given_up_.size() + (collectives_ == nullptr ? 0 : collectives_->in_flight());
  }
  // Every request ends with `why`, and so does what is submitted later. Stages, transports and memory stay as they are,
  // and are not used any more: for an engine whose thread is inside a plugin that does not return.
  void EndRequests(const absl::Status& why);
  // Does it go the way of push_pull and broadcast? Others go among workers. From Join on; any thread.
  bool TakesStages(const Collective& asked) const;
  // What an operation that has not ended waits for, for people; empty if it has ended.
  std::string DescribeWait(Time now, const Request* request) const;
  // "servers": the way of every operation, stage by stage.
  std::string DescribeStages() const;
  // What to wait for between two Polls; until the next call.
  const std::vector<Endpoint*>& endpoints();
  const std::vector<int>& descriptors();

 private:
  void OnGivingUp(Operation* operation, const absl::Status& why, bool told) override;
  void OnEnqueued(Operation* operation) override;
  void OnStageDone(Operation* operation, const absl::Status& outcome) override;
  void OnStageFatal(const absl::Status& why, uint32_t member) override;

  void OnCollectiveDone(std::shared_ptr<Request> request, const absl::Status& outcome) override;
  void OnCollectivesFatal(const absl::Status& why, uint32_t member) override { OnStageFatal(why, member); }
  void OnTellPeers(const std::vector<uint32_t>& members, const control::Lane& lane) override {
    handler_->OnTellPeers(members, lane);
  }
  bool OnTakePart(Time now, const AbsentPart& part) override;
  std::optional<bool> TakePart(Time now, const AbsentPart& part);
  void OnAbsent(Time now, uint32_t rank) override;
  bool WaitsToGiveUp() const override { return !given_up_.empty(); }
  TensorName* OnName(const std::string& text) override { return tensors_.Name(text); }
  Operation* OnStaged(uint64_t id, uint64_t round) override;
  void OnClash(Time now, Operation* staged, const absl::Status& why) override { Abort(now, staged, why); }
  AbsentPart AbsentPartOf(const Operation& operation) const;
  void TellAbsent(Time now, const Operation& operation, uint32_t rank);
  void RememberFailed(const Operation& operation);
  void Refuse(Time now, Submission asked, const absl::Status& why);
  void RefuseTaken(Operation* operation, const absl::Status& why);
  void Owe(const Operation& operation, const absl::Status& why);
  bool RunGivenUp(Time now);
  void EndGivenUp(const absl::Status& why);

  // AssignmentsSink.
  void OnDeclare(const std::vector<control::TensorSpec>& tensors) override { handler_->OnDeclare(tensors); }
  void OnAssigned(Tensor* tensor) override;
  void OnCutKnown(Time now, Operation* operation) override { Begin(now, operation); }
  void OnRefused(Operation* operation, const absl::Status& why) override { End(operation, why); }
  uint64_t BytesPerSecond() const override;

  void Link();
  Operation* Take(Time now, Submission asked);
  void Begin(Time now, Operation* operation);
  void Abort(Time now, Operation* operation, const absl::Status& why);
  void End(Operation* operation, const absl::Status& outcome);
  bool CheckDeadlines(Time now);
  void CheckStalls(Time now);
  std::string Awaited(const Operation& operation) const;
  void SetAlarm(Operation* operation, Time at);

  const EngineOptions options_;
  EngineHandler* const handler_;
  Logger* const log_;

  struct Deleter {
    std::pmr::memory_resource* memory;
    void operator()(Operation* operation) const { std::pmr::polymorphic_allocator<>(memory).delete_object(operation); }
  };

  // Of operations and what is listed by them: used again and again.
  std::pmr::unsynchronized_pool_resource memory_{{.max_blocks_per_chunk = 0, .largest_required_pool_block = 1 << 16}};
  TensorTable tensors_;
  Assignments assignments_{&tensors_, static_cast<AssignmentsSink*>(this)};
  std::vector<std::unique_ptr<Stage>> stages_;                         // the way of every operation, linked
  std::vector<std::pair<std::string, std::unique_ptr<Stage>>> added_;  // until Join: before which
  std::unique_ptr<ServersStage> servers_;                              // prepared, until Join
  std::unique_ptr<LocalStage> local_;                                  // likewise
  LocalStage* neighbours_ = nullptr;                                   // one of stages_
  std::unique_ptr<Collectives> collectives_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Operation, Deleter>> operations_;
  absl::flat_hash_map<const Request*, Operation*> by_request_;
  RootCopies root_copies_;
  std::vector<Submission> given_up_;                           // rounds that wait for their turn
  std::pmr::set<std::pair<Time, uint64_t>> alarms_{&memory_};  // by time, operation
  uint64_t next_operation_ = 1;
  PathCosts paths_;
  uint32_t size_ = 1;
  uint32_t own_rank_ = 0;
  Time stall_look_ = kNever;  // when operations are looked at for stalls
  Time now_ = 0;
  absl::Status failure_;
  absl::Status fatal_;  // becomes failure_ at fatal_at_, unless Fail comes first
  Time fatal_at_ = 0;
  std::vector<Completion> completions_;
  std::vector<Endpoint*> endpoints_;  // as asked last
  std::vector<int> descriptors_;      // likewise
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_ENGINE_ENGINE_H_
