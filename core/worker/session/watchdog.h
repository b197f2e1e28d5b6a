// watchdog.h - notices that the thread which moves everything is inside a plugin and does not come back.
//
//     Watchdog watchdog(&calls, limit, &log, on_stuck);
//     watchdog.Start();
//
// A plugin runs on the session's own thread: while it does not return, nothing is sent, no deadline of an operation is
// looked at, and the other members take this worker for dead. The watchdog looks every second. A call that lasts
// kWarnAfter is named in the log; one that lasts `limit` ends the session: `on_stuck` runs once, on the watchdog's thread.
//
// Threads: one of its own, from Start to Stop.
#ifndef BYTEPS_CORE_WORKER_SESSION_WATCHDOG_H_
#define BYTEPS_CORE_WORKER_SESSION_WATCHDOG_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/plugin/plugin_calls.h"

namespace byteps {

class Watchdog {
 public:
  static constexpr Time kInterval = kSecond;
  static constexpr Time kWarnAfter = 5 * kSecond;

  using OnStuck = std::function<void(const absl::Status& why)>;

  // `calls` and `log` outlive this.
  Watchdog(const PluginCalls* calls, Time limit, const Logger* log, OnStuck on_stuck)
      : calls_(calls), limit_(limit), log_(log), on_stuck_(std::move(on_stuck)) {}
  ~Watchdog() { Stop(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Throws std::system_error if there is no thread to be had.
  void Start();
  void Stop();

 private:
  void Run();
  void Look(Time now);

  const PluginCalls* const calls_;
  const Time limit_;
  const Logger* const log_;
  const OnStuck on_stuck_;
  uint64_t call_ = 0;  // seen last
  Time since_ = 0;     // when it was seen first
  bool warned_ = false;
  bool ended_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SESSION_WATCHDOG_H_
