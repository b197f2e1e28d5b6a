#include "core/worker/session/watchdog.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace byteps {

void Watchdog::Start() {
  // Signals belong to the host's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_setname_np(thread_.native_handle(), "bps-watchdog");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Watchdog::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Run() {
  const Time interval = std::min(kInterval, limit_);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::nanoseconds(interval), [this] { return stop_; })) {
    lock.unlock();
    Look(Now());
    lock.lock();
  }
}

void Watchdog::Look(Time now) {
  const PluginCalls::Now call = calls_->Look();
  if (call.number == 0 || call.number != call_) {
    call_ = call.number;
    since_ = now;
    warned_ = false;
    return;
  }
  const Time lasted = now - since_;
  if (!warned_ && lasted >= std::min(kWarnAfter, limit_)) {
    warned_ = true;
    BPS_LOG(*log_, kWarning) << call.plugin << " has not returned from " << call.verb << " for at least "
                             << lasted / kSecond << " s: nothing moves in this worker until it does";
  }
  if (ended_ || lasted < limit_) return;
  ended_ = true;
  on_stuck_(
      absl::InternalError(absl::StrCat(call.plugin, " has not returned from ", call.verb, " for ", lasted / kSecond,
                                       " s, so this worker cannot go on. It is a defect of the plugin")));
}

}  // namespace byteps
