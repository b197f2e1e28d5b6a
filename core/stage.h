// stage.h - one step on the way of a tensor. Which steps an operation takes is data: the engine holds a list of stages.
//
//     stage->Start(now, operation);       // the engine hands it over
//     stage->Run(now);                    // from time to time: progress
//     sink->OnStageDone(operation, status)  // the stage hands it back, from Run, from Abort or from Start itself
//
// Today the list has one entry: `local` for a worker alone, `servers` otherwise.
//
// Threads: none; called by whoever drives the engine.
#ifndef BYTEPS_CORE_STAGE_H_
#define BYTEPS_CORE_STAGE_H_

#include "absl/status/status.h"
#include "core/operation.h"

namespace byteps {

class StageSink {
 public:
  virtual ~StageSink() = default;
  // The stage has ended its work on the operation and touches none of its memory any more.
  virtual void OnStageDone(Operation* operation, const absl::Status& outcome) = 0;
  // Nothing can go on.
  virtual void OnStageFatal(const absl::Status& why) = 0;
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
  // One round of progress. True if anything happened.
  virtual bool Run(Time now) = 0;
  // When Run must be called although nothing arrives.
  virtual Time NextTimer() const = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_STAGE_H_
