#include "core/worker/tensor/request.h"

#include <chrono>
#include <utility>

#include "core/base/status.h"

namespace byteps {

const char* RequestStateName(int32_t state) {
  switch (static_cast<RequestState>(state)) {
    case RequestState::kDeclaring:
      return "declaring";
    case RequestState::kQueued:
      return "queued";
    case RequestState::kActive:
      return "active";
    case RequestState::kEnqueued:
      return "enqueued";
    case RequestState::kDone:
      return "done";
    case RequestState::kFailed:
      return "failed";
  }
  return "unknown";
}

bool Request::WaitUntil(Time deadline) const {
  if (ended()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  // The steady clock is the monotonic one that Time counts: a changed wall clock has no effect.
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
  return condition_.wait_until(lock, until, [this] { return ended(); });
}

bool Request::WaitForStream(Time deadline) const {
  const auto there = [this] { return ended() || state() == RequestState::kEnqueued; };
  if (there()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
  return condition_.wait_until(lock, until, there);
}

void Request::Advance(RequestState state) {
  RequestState now = state_.load(std::memory_order_relaxed);
  do {
    // An end, or a later state: by its number all but kEnqueued.
    const bool ends = state == RequestState::kDone || state == RequestState::kFailed;
    const bool later = now == RequestState::kDone || now == RequestState::kFailed || now >= state;
    if (ends || later) return;
  } while (!state_.compare_exchange_weak(now, state, std::memory_order_release));
  if (state != RequestState::kEnqueued) return;
  // Under the mutex, or a waiter that has just looked would miss the notice.
  { const std::lock_guard<std::mutex> lock(mutex_); }
  condition_.notify_all();
}

void Request::Complete(absl::Status outcome) {
  if (completed_.exchange(true, std::memory_order_acq_rel)) return;
  outcome_ = std::move(outcome);
  state_.store(outcome_.ok() ? RequestState::kDone : RequestState::kFailed, std::memory_order_release);
  Hold({}, {});
  if (done_ != nullptr) done_(user_, StatusToC(outcome_));
  {
    // Under the mutex, or a waiter that has just looked would miss the notice.
    std::lock_guard<std::mutex> lock(mutex_);
    ended_.store(true, std::memory_order_seq_cst);
  }
  condition_.notify_all();
}

}  // namespace byteps
