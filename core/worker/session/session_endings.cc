// The ways in which a session ends: it is left, closed, fails, or its thread does not return from a plugin.
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/worker/session/session.h"

namespace byteps {
namespace {

// How much later than its deadline Shutdown ends at the latest: beyond ControlClientOptions.grace.
constexpr Time kLeaveGrace = 4 * kSecond;
// How long Close waits for the final message to the coordinator to leave.
constexpr Time kDrainTime = kSecond / 2;
// Twice as long may a plugin be in one call when the session is closed.
constexpr Time kStopTime = 2 * kSecond;

}  // namespace

// ---- Leaving ----

absl::Status Session::Shutdown(Time timeout) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  std::lock_guard<std::mutex> one(shutdown_mutex_);
  if (std::exchange(shut_down_, true)) return absl::OkStatus();
  if (timeout == 0) timeout = shutdown_timeout_;
  const Time deadline = After(Now(), timeout);
  auto request = std::make_shared<Request>(nullptr, nullptr);
  driver_.Run([&] {
    leaving_now_.store(true);
    leaving_ = request;
    leave_deadline_ = deadline;
  });
  // The coordinator answers at the deadline at the latest; that it does not, the client says, a little later.
  if (!WaitUntil(*request, After(deadline, kLeaveGrace))) {
    if (stuck()) return failure();
    driver_.Run([&] {
      leaving_.reset();
      EndWaits(absl::CancelledError("the session was shut down"));
    });
    return absl::DeadlineExceededError("the session could not be left in time");
  }
  return request->outcome();
}

void Session::Close() {
  if (fork_guard_.in_child() || closed_.exchange(true)) return;
  leaving_now_.store(true);
  buffers_->Unshare();
  WaitOrAbandon([this](Time deadline) { return driver_.Stop(deadline); });
  collapser_.Stop();
  if (const Time step = driver_.longest_step(); step != 0 && !stuck()) {
    BPS_LOG(log_, kInfo) << "the longest step of this session's thread took " << step / 1'000 << " us";
  }
  if (watchdog_ != nullptr) watchdog_->Stop();
  // Otherwise what is left belongs to the thread that does not come back.
  if (!stuck()) device_stage_ ? EndAllOnThread() : EndAll();
  (void)timeline_.Stop();  // it has logged what went wrong
}

// A thread that closes does not wait for as long as the watchdog does.
void Session::WaitOrAbandon(const std::function<bool(Time)>& ended) {
  for (uint64_t call = 0; !ended(After(Now(), kStopTime));) {
    const PluginCalls::Now now = plugin_calls_.Look();
    if (now.number != 0 && now.number == std::exchange(call, now.number)) {
      OnStuck(absl::InternalError(absl::StrCat(
          now.plugin, " has not returned from ", now.verb,
          ": the session is closed without it. It is a defect of the plugin, or of the driver beneath it")));
    }
  }
}

// What GPUs are asked at the end is asked on a thread that can be left behind.
void Session::EndAllOnThread() {
  std::packaged_task<void()> task([this] { EndAll(); });
  std::future<void> done = task.get_future();
  // Signals belong to the host's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(task));
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.joinable()) return EndAll();
  WaitOrAbandon([&](Time deadline) {
    const auto left = std::chrono::nanoseconds(std::max<Time>(deadline - Now(), 0));
    return stuck() || done.wait_for(left) == std::future_status::ready;
  });
  stuck() ? thread.detach() : thread.join();
}

void Session::EndAll() {
  std::vector<Completion> completions;
  driver_.Run([&] {
    if (engine_ == nullptr) return;
    const absl::Status why = absl::CancelledError("the session was closed");
    const Time now = Now();
    RunCommands(now);
    engine_->Fail(now, why);
    EndWaits(why);
    CollectEnded();
    completions = std::exchange(completions_, {});
    // Last words leave, then the others see this member gone.
    if (control_ != nullptr) control_->Drain(After(now, kDrainTime));
    control_.reset();
  });
  driver_.Deliver(completions);
  if (!device_stage_) return;
  driver_.Run([&] {
    engine_->DropStages();
    gpus_->Forget();
  });
}

Session::~Session() { Close(); }

// First the operations end, and what the others need of us for theirs is with the transport; then Goodbye is said, and
// the coordinator answers when all have said it. At the deadline we leave alone: a worker that works on is not our
// error.
void Session::CheckLeaving(Time now) {
  if (failure_.any()) {
    completions_.push_back({std::exchange(leaving_, nullptr), failure()});
    return;
  }
  if (goodbye_said_) return;
  if (in_flight_.load() == 0 && commands_.queue_empty() && (engine_->Sent() || now >= leave_deadline_)) {
    if (control_ == nullptr) {
      completions_.push_back({std::exchange(leaving_, nullptr), absl::OkStatus()});
      return;
    }
    goodbye_said_ = true;
    control_->client().Goodbye(now, std::max<Time>(leave_deadline_ - now, kMillisecond));
    return;
  }
  if (now < leave_deadline_) return;
  const absl::Status why = absl::DeadlineExceededError(
      absl::StrCat(in_flight_.load(), " operations had not ended when the time to leave was up"));
  const absl::Status given_up = absl::CancelledError("the session was shut down");
  engine_->CancelAll(now, given_up);
  completions_.push_back({std::exchange(leaving_, nullptr), why});
  EndWaits(given_up);
}

void Session::OnGoodbye(const absl::Status& status) {
  // Servers may go now: that is no failure any more.
  engine_->Fail(now_, absl::FailedPreconditionError("the session was shut down"));
  if (const std::string& staying = control_->client().staying(); !staying.empty()) {
    BPS_VERBOSE(log_, 1) << "has left the session; still there: " << staying;
  }
  if (leaving_ != nullptr) completions_.push_back({std::exchange(leaving_, nullptr), status});
}

// ---- Failure ----

void Session::SetFailure(const absl::Status& why) {
  if (!failure_.Set(why)) return;
  engine_->Fail(now_, why);
  EndWaits(why);
}

void Session::OnStuck(const absl::Status& why) {
  if (stuck_told_.exchange(true)) return;
  BPS_LOG(log_, kError) << why.message();
  failure_.Set(why);
  const bool held = plugin_calls_.Hold(plugin_calls_.Look().number);
  driver_.Abandon();
  if (held) EndForStuckThread(why);
}

// No plugin is called, nothing is freed: the one that does not return may still use all of it.
void Session::EndForStuckThread(const absl::Status& why) {
  now_ = Now();
  try {
    if (control_ != nullptr) {
      control_->client().Fail(now_, why);
      control_->Drain(After(now_, kDrainTime));
    }
    engine_->EndRequests(why);
    EndWaits(why);
    RunCommands(now_);
    CollectEnded();
    std::vector<Completion> completions = std::exchange(completions_, {});
    driver_.Deliver(completions);
  } catch (const std::exception& error) {
    BPS_LOG(log_, kError) << "unexpected exception while the session ends: " << error.what();
  }
}

void Session::EndWaits(const absl::Status& why) {
  if (opening_ != nullptr) completions_.push_back({std::exchange(opening_, nullptr), why});
  if (leaving_ != nullptr) completions_.push_back({std::exchange(leaving_, nullptr), why});
  for (auto& [key, request] : std::exchange(barriers_, {})) completions_.push_back({request, why});
}

// The session ends, the host's process does not.
void Session::OnException(const char* what) noexcept {
  try {
    OnFailed(absl::InternalError(absl::StrCat("unexpected exception in the session: ", what)));
    CollectEnded();
  } catch (...) {
    // There is no memory left even for that. Later calls fail at once all the same.
    failure_.Set(absl::Status(absl::StatusCode::kInternal, ""));
  }
}

}  // namespace byteps
