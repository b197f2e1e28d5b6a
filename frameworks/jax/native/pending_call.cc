#include "frameworks/jax/native/pending_call.h"

#include <utility>

#include "frameworks/jax/native/completion_threads.h"
#include "frameworks/jax/native/error_text.h"
#include "frameworks/jax/native/failures.h"

namespace byteps::jax {

namespace ffi = xla::ffi;

PendingCall::PendingCall() : state_(std::make_shared<State>()), future_(state_->promise) {}

binding::Done PendingCall::Done() {
  return [state = state_](const binding::Outcome& outcome) {
    state->outcome = outcome;
    if (state->phase.exchange(Phase::kEnded, std::memory_order_acq_rel) == Phase::kCalled) return;
    TheCompletionThreads().Run([state] { Tell(*state); });
  };
}

ffi::Future PendingCall::Return() {
  // Nothing waits for the future yet, so that nothing is computed here.
  if (state_->phase.exchange(Phase::kReturned, std::memory_order_acq_rel) == Phase::kEnded) Tell(*state_);
  return std::move(future_);
}

void PendingCall::Tell(State& state) {
  const binding::Outcome& outcome = state.outcome;
  if (outcome.ok()) {
    state.promise.SetAvailable();
  } else {
    TheFailures().Add(outcome);
    state.promise.SetError(ffi::Error(static_cast<ffi::ErrorCode>(outcome.code), ErrorText(outcome)));
  }
}

}  // namespace byteps::jax
