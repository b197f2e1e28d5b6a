// collective_copies.h - operations among workers whose input or output lies in the memory of a GPU: what copies between
// it and memory of the host, which is all that the others reach.
//
//     collectives.UseCopies(std::make_unique<StagedCollectives>(...));     // with the first such operation
//
//     Collectives                                         CollectiveCopies
//        Begin(asked) ──────────────────────────────────────────> waits for the caller's stream, copies the input
//        OnInputCopied(request, input) <─────────────────────────         (the round is held until then)
//        Output(request, bytes) ────────────────────────────────> memory of the host for the result
//        End(asked, outcome) ───────────────────────────────────> copies the result
//        OnCopiesEnded(request, outcome) <───────────────────────
//
// Failure: OnCopiesFailed while a round is there, which is given up then, and ends by End like every other. From Begin
// to OnCopiesEnded the memory of the caller may be read and written.
//
// Threads: none; driven by the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVE_COPIES_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVE_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/tensor/request.h"

namespace byteps {

// What Collectives hear. None of these is called inside Begin or Output.
class CollectiveCopiesSink {
 public:
  virtual ~CollectiveCopiesSink() = default;
  // The round may go on, with this input; the output may be written.
  virtual void OnInputCopied(const Request* request, const std::byte* input) = 0;
  virtual void OnCopiesFailed(const Request* request, const absl::Status& why) = 0;
  // Nothing of it is under way any more.
  virtual void OnCopiesEnded(std::shared_ptr<Request> request, const absl::Status& outcome) = 0;
};

class CollectiveCopies {
 public:
  virtual ~CollectiveCopies() = default;
  // Who hears of it; before all else.
  virtual void UseSink(CollectiveCopiesSink* sink) = 0;

  // Takes an operation on memory of GPUs (Collective::gpu), which ends at `deadline`.
  virtual void Begin(Time now, const Collective& asked, int32_t own_rank, Time deadline) = 0;
  // Memory of the host for a result of so many bytes; nullptr: its output is on the host. Errors: RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::byte*> Output(const Request* request, uint64_t bytes) = 0;
  // The round is over. OK: `asked.result` tells what is to be copied; then it tells of the caller's output.
  virtual void End(Time now, const Collective& asked, const absl::Status& outcome) = 0;
  // Its round is over, and its caller does not want to wait. False: there is none such.
  virtual bool Hurry(Time now, const Request* request) = 0;

  virtual bool Run(Time now) = 0;
  virtual Time NextTimer() const = 0;
  // Operations whose round is over.
  virtual size_t in_flight() const = 0;
  // What it waits for, for people; empty: nothing of the GPU's.
  virtual std::string DescribeWait(const Request* request) const = 0;
  // Every round is over: ends all, waiting for copies that are under way, for a moment.
  virtual void Stop() = 0;
  // The requests of those whose round is over; nothing is called, and nothing given back.
  virtual std::vector<std::shared_ptr<Request>> Disown() = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_COLLECTIVE_COPIES_H_
