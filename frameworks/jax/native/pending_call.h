// pending_call.h - a call of XLA's that returns before its operation has ended, and is told when it has.
//
//     PendingCall call;
//     PushPull(TheSession(), ..., call.Done());
//     return call.Return();
//
// What ends before the call has returned is told by the call itself. Later XLA computes what has waited for it, at once
// and on the thread that tells: one of TheCompletionThreads().
//
// Threads: those of a call are XLA's; Done() may be called by any, once.
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_PENDING_CALL_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_PENDING_CALL_H_

#include <atomic>
#include <memory>

#include "frameworks/common/attached_session.h"
#include "frameworks/common/operation.h"
#include "xla/ffi/api/ffi.h"

namespace byteps::jax {

class PendingCall {
 public:
  PendingCall();

  // What the operation calls when it ends.
  binding::Done Done();

  // What the call returns to XLA; the last thing it does.
  xla::ffi::Future Return();

 private:
  enum class Phase { kCalled, kReturned, kEnded };

  struct State {
    xla::ffi::Promise promise;
    std::atomic<Phase> phase = Phase::kCalled;
    binding::Outcome outcome;  // once the phase is kEnded
  };

  static void Tell(State& state);

  std::shared_ptr<State> state_;
  xla::ffi::Future future_;
};

}  // namespace byteps::jax

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_PENDING_CALL_H_
