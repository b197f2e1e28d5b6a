#include "core/plugin/watchdog.h"

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
    for (Watched& watched : watched_) Look(Now(), &watched);
    lock.lock();
  }
}

void Watchdog::Look(Time now, Watched* watched) const {
  const PluginCalls::Now call = watched->calls->Look();
  if (call.number == 0 || call.number != watched->call) {
    watched->call = call.number;
    watched->since = now;
    watched->warned = false;
    return;
  }
  const Time lasted = now - watched->since;
  if (!watched->warned && lasted >= std::min(kWarnAfter, limit_)) {
    watched->warned = true;
    BPS_LOG(*log_, kWarning) << call.plugin << " has not returned from " << call.verb << " for at least "
                             << lasted / kSecond << " s: nothing moves in " << whom_ << " until it does";
  }
  if (watched->ended || lasted < limit_) return;
  watched->ended = true;
  watched->on_stuck(absl::InternalError(
      absl::StrCat(call.plugin, " has not returned from ", call.verb, " for ", lasted / kSecond, " s, so ", whom_,
                   " cannot go on. It is a defect of the plugin, or of the driver beneath it")));
}

}  // namespace byteps
