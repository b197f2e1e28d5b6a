// stage.h - one step on the way of a tensor. Which steps there are is data: the engine holds a list of stages.
//
//     stage->Start(now, operation);       // the engine hands it to the first
//     stage->Run(now);                    // from time to time: progress
//     sink->OnStageDone(operation, status)  // the stage hands it back, from Run, from Abort or from Start itself
//
// The lists: `alone` for a worker alone, `servers`, `local` for the workers of one host among themselves, and
// `local, servers` for several hosts. There the local stage has the operation from its beginning to its end; it hands
// parts of it on to the servers stage, whose sink it is.
//
// Threads: none; called by whoever drives the engine.
#ifndef BYTEPS_CORE_WORKER_TENSOR_STAGE_H_
#define BYTEPS_CORE_WORKER_TENSOR_STAGE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/link/endpoint.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/tensor.h"

namespace byteps {

class StageSink {
 public:
  virtual ~StageSink() = default;
  // The stage has ended its work on the operation and touches none of its memory any more. The root of a broadcast has
  // its own output copied from its input by the engine.
  virtual void OnStageDone(Operation* operation, const absl::Status& outcome) = 0;
  // Nothing can go on. `member`: of the job, whose loss it is; 0: not known, or nobody's.
  virtual void OnStageFatal(const absl::Status& why, uint32_t member) = 0;
  // Of the servers stage, to the local stage: the result of this part is in the output.
  virtual void OnPartHome(Operation* operation, uint32_t part) { (void)operation, (void)part; }
  // Likewise: the operation is being given up; OnStageDone follows. `heard`: from a server, in words for all ranks.
  virtual void OnGivingUp(Operation* operation, const absl::Status& why, bool heard) {
    (void)operation, (void)why, (void)heard;
  }
};

class Stage {
 public:
  virtual ~Stage() = default;
  // For people: "servers".
  virtual const char* name() const = 0;
  // Takes the operation.
  virtual void Start(Time now, Operation* operation) = 0;
  // Gives an operation of this stage up, telling the others why; it leaves with this error as soon as nobody touches
  // its memory any more. Ignored if it is being given up already.
  virtual void Abort(Time now, Operation* operation, const absl::Status& why) = 0;
  // Lets go of an operation at once, telling nobody: Stop came before.
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
  virtual void Know(Tensor* tensor, std::span<const Tensor::Owed> given_up) { (void)tensor, (void)given_up; }
  // What an operation waits for, for the error of its deadline: "no answer from server 1 (...)".
  virtual std::string WhoIsMissing(const Operation& operation) const { return (void)operation, ""; }
  // What results have come at, to cut tensors by; 0: not known, or of no use.
  virtual uint64_t bytes_per_second() const { return 0; }
  // What to wait for between two Runs.
  virtual void AddEndpoints(std::vector<Endpoint*>* all) { (void)all; }
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_STAGE_H_
