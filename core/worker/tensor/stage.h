// stage.h - one step on the way of a tensor. Which steps there are is data: the engine holds a chain of stages.
//
//     stage->UseSink(sink);  stage->UseNext(next);     // the chain, before Join
//     stage->Begin(now, operation, areas, range);      // so many parts of it are going to come
//     stage->Push(now, operation, part, from, to);     // each as soon as its bytes are ready
//     stage->Run(now);                                 // from time to time: progress
//     sink->OnPartHome(operation, part, result);       // each part of the range: its result is where it was wanted
//     sink->OnStageDone(operation, outcome);           // the stage is through with it
//
//       engine ──Begin, Push──> stage ──Begin, Push──> next stage ── ...
//              <─OnPartHome────       <─OnPartHome────
//              <─OnStageDone───       <─OnStageDone───
//
// The chains: `alone` for a worker alone, `servers`, `local` for the workers of one host among themselves, and `local`,
// `servers` for several hosts. A stage knows its neighbours in the chain by these two interfaces only: any other stage
// (a codec, a copy out of a device) may stand between them or before them; see relay_stage.h.
//
// Contract:
//   - Every operation that has begun ends with one OnStageDone, unless Drop came first. A good one comes behind the
//     OnPartHome of every part of the range, any other behind OnGivingUp.
//   - Begin and Push end nothing: what becomes of an operation is told from Run, or from Abort and Withdraw, which may
//   do
//     so before they return.
//   - From Begin to OnStageDone the areas belong to the stage. It touches a part's payload from its Push on.
//   - A failure may begin anywhere. Where it was noticed, the stage tells the stage before (OnGivingUp) or behind it
//     (Abort, Withdraw); each lets go of the memory in its own time, and then says OnStageDone.
//   - Nothing blocks. A stage that waits for something that is no Endpoint (a device event, a file, a thread) has a
//     descriptor (AddDescriptors) or a timer.
//
// Threads: none; called by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_TENSOR_STAGE_H_
#define BYTEPS_CORE_WORKER_TENSOR_STAGE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/link/endpoint.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/part_owners.h"
#include "core/worker/tensor/payload.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {

// What a stage tells the one before it, or the engine.
class StageSink {
 public:
  virtual ~StageSink() = default;
  // The result of this part is in `result`: the target that came with its Push, unless a codec made it of other bytes,
  // or the target is memory of a GPU: then it may be memory of the host, which may be read during the call.
  virtual void OnPartHome(Operation* operation, uint32_t part, const Payload& result) {
    (void)operation, (void)part, (void)result;
  }
  // The operation is being given up; OnStageDone follows. `told`: all ranks have heard `why` in these words.
  virtual void OnGivingUp(Operation* operation, const absl::Status& why, bool told) {
    (void)operation, (void)why, (void)told;
  }
  // Of a result in device memory: its copies are in a stream, and the tensor may be submitted again. OnStageDone
  // follows when they have ended.
  virtual void OnEnqueued(Operation* operation) { (void)operation; }
  // The stage, and whatever is behind it, touches none of the operation's memory any more.
  virtual void OnStageDone(Operation* operation, const absl::Status& outcome) = 0;
  // Nothing can go on. `member`: of the job, whose loss it is; 0: not known, or none's.
  virtual void OnStageFatal(const absl::Status& why, uint32_t member) = 0;
};

class Stage {
 public:
  virtual ~Stage() = default;
  // For people: "servers".
  virtual const char* name() const = 0;

  // Who hears of it: the stage before, or the engine.
  void UseSink(StageSink* sink) { sink_ = sink; }
  // Before Join: parts go on to `next`. Throws std::logic_error for a stage that is always the last.
  virtual void UseNext(Stage* next);

  // May an operation that is about to begin here come with areas in the memory of a GPU, as these say? If so they are
  // registered where they must be. False: with memory of the host only.
  virtual bool TakesDevice(const Operation& operation, const Areas& areas) {
    return (void)operation, (void)areas, false;
  }
  // Takes an operation, of which the parts of `range` (not empty) go through this worker.
  virtual void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) = 0;
  // The bytes of `source` are ready; the result belongs into `target`. Both lie in the areas.
  virtual void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) = 0;
  // In which order the parts of an operation that has begun are best pushed, if all are ready: a permutation.
  virtual uint32_t PartAt(const Operation& operation, uint32_t turn) const { return (void)operation, turn; }

  // Gives an operation up that began here (or was to), telling the other ranks why. Ignored if it is being given up.
  // Not after its OnStageDone.
  virtual void Abort(Time now, Operation* operation, const absl::Status& why) = 0;
  // The same for an operation of which the other ranks hear elsewhere.
  virtual void Withdraw(Time now, Operation* operation, const absl::Status& why) { Abort(now, operation, why); }
  // Lets go of an operation at once, telling nothing: Stop came before.
  virtual void Drop(Operation* operation) = 0;
  // Ends all input and output: nothing touches the memory of any operation afterwards.
  virtual void Stop() = 0;
  // Some of the library's own buffers were freed: they must not stay registered.
  virtual void DropFreedBuffers() {}
  // One round of progress. True if anything happened.
  virtual bool Run(Time now) = 0;
  // When Run must be called although nothing arrives.
  virtual Time NextTimer() const = 0;

  // Are all connections there? Until then `missing` names who is awaited.
  virtual bool ready() const { return true; }
  virtual std::string missing() const { return ""; }
  // The coordinator has assigned `tensor`: its key may now appear in records. Tells the others of the rounds of it that
  // were given up before.
  virtual void OnAssigned(Tensor* tensor, std::span<const Tensor::Owed> given_up) { (void)tensor, (void)given_up; }
  // What an operation waits for, for the error of its deadline: "no answer from server 1 (...)".
  virtual std::string WhoIsMissing(const Operation& operation) const { return (void)operation, ""; }
  // What results have come at, to cut tensors by; 0: not known, or of no use.
  virtual uint64_t bytes_per_second() const { return 0; }
  // What to wait for between two Runs: connections, and descriptors that are readable when Run has something to do.
  virtual void AddEndpoints(std::vector<Endpoint*>* all) { (void)all; }
  virtual void AddDescriptors(std::vector<int>* all) { (void)all; }

 protected:
  StageSink* sink_ = nullptr;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_STAGE_H_
