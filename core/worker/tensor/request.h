// request.h - one accepted operation as its caller sees it: a state, an outcome, a caller that waits.
//
//     auto request = std::make_shared<Request>(done, user); // or in memory that is used again: core/base/block_stock.h
//     request->Advance(RequestState::kActive);          // the engine, while it works
//     request->Complete(absl::OkStatus());              // once; runs `done`, then wakes the threads that wait
//     if (request->WaitUntil(deadline)) return request->outcome();
//
// The subtle parts:
//
// Once.      The first Complete decides; later ones are ignored. Exactly one call of `done` follows it.
// Order.     state() says DONE or FAILED when `done` runs; ended() becomes true and waits return when it has returned,
//            so a caller that waited may free what `done` uses.
// Lifetime.  A request outlives its session: its handle, the engine and a caller inside a wait share it.
// Threads.   Advance and Complete are called by the thread that drives the engine, the rest by any thread. (Complete
//            also by the thread that ends the session in its place: core/plugin/watchdog.h.)
#ifndef BYTEPS_CORE_WORKER_TENSOR_REQUEST_H_
#define BYTEPS_CORE_WORKER_TENSOR_REQUEST_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/worker/memory/buffer.h"

namespace byteps {

// Only moves downwards; each may be skipped. (The numbers are those of the ABI, to which one was appended.)
enum class RequestState : int32_t {
  kDeclaring = BPS_REQUEST_DECLARING,
  kQueued = BPS_REQUEST_QUEUED,
  kActive = BPS_REQUEST_ACTIVE,
  kEnqueued = BPS_REQUEST_ENQUEUED,
  kDone = BPS_REQUEST_DONE,
  kFailed = BPS_REQUEST_FAILED,
};

// "declaring", "queued", ...; "unknown" for a number that is no state. Static storage.
const char* RequestStateName(int32_t state);

class Request {
 public:
  // `in_call`: `done` may run on the thread of any caller of the session, before its call returns.
  Request(bps_done_fn done, void* user, bool in_call = false) : done_(done), user_(user), in_call_(in_call) {}
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  RequestState state() const { return state_.load(std::memory_order_acquire); }

  // Has it ended, and its callback returned?
  // (Sequentially consistent, with Complete: "end it, then look for sleepers" and "sleep, then look whether it has
  // ended" cannot both miss each other; see core/worker/session/driver.h.)
  bool ended() const { return ended_.load(std::memory_order_seq_cst); }

  // Is there a callback?
  bool has_callback() const { return done_ != nullptr; }

  // May it run on the thread of a caller? Else Complete belongs on a thread of the library.
  bool may_end_in_call() const { return in_call_; }

  // The outcome; of an ended request only.
  absl::Status outcome() const { return outcome_; }

  // Blocks until the request has ended, at most until `deadline`. True if it has ended.
  bool WaitUntil(Time deadline) const;

  // Blocks until the result is in a stream of its GPU (kEnqueued) or the request has ended, at most until `deadline`.
  // False: it is in none yet.
  bool WaitForStream(Time deadline) const;

  // Moves to a later state that is not an end; anything else is ignored.
  void Advance(RequestState state);

  // Holds the buffers that input and output lie in, until the request ends. Before the operation is accepted.
  void Hold(BufferUse input, BufferUse output) {
    input_ = std::move(input);
    output_ = std::move(output);
  }

  // These buffers; nullptr: other memory.
  const std::shared_ptr<Buffer>& input_buffer() const { return input_.buffer(); }
  const std::shared_ptr<Buffer>& output_buffer() const { return output_.buffer(); }

  // Ends the request.
  void Complete(absl::Status outcome);

 private:
  const bps_done_fn done_;
  void* const user_;
  const bool in_call_;
  std::atomic<RequestState> state_{RequestState::kDeclaring};
  std::atomic<bool> completed_{false};
  std::atomic<bool> ended_{false};
  BufferUse input_;
  BufferUse output_;
  absl::Status outcome_;  // written once, before ended_
  mutable std::mutex mutex_;
  mutable std::condition_variable condition_;
};

// A request that is to end, and how.
struct Completion {
  std::shared_ptr<Request> request;
  absl::Status outcome;
  void Run() { request->Complete(std::move(outcome)); }
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_REQUEST_H_
