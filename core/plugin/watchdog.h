// watchdog.h - notices that a thread which moves data is inside a plugin that does not return.
//
//     Watchdog watchdog("this worker", limit, &log);
//     watchdog.Add(&calls, on_stuck);                  // for each thread that calls plugins
//     watchdog.Start();
//
// Plugins run on the threads that drive sessions and server lanes: while a call does not return, such a thread sends
// nothing, looks at no deadline, and its peers take it for dead. The watchdog looks every second. A call that lasts
// kWarnAfter is named in the log; one that lasts `limit` is given up: `on_stuck` runs once, on the watchdog's thread.
//
// Threads: one of its own, from Start to Stop; Add before Start.
#ifndef BYTEPS_CORE_PLUGIN_WATCHDOG_H_
#define BYTEPS_CORE_PLUGIN_WATCHDOG_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

  // `whom`: for people, what stands still ("this worker"). `log` outlives this.
  Watchdog(std::string whom, Time limit, const Logger* log) : whom_(std::move(whom)), limit_(limit), log_(log) {}
  ~Watchdog() { Stop(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The limit under which the cause is told before the peers, which wait for `peer_timeout`, find a member silent.
  static Time LimitOf(Time peer_timeout) { return peer_timeout / 4 * 3; }

  // `calls` outlives this.
  void Add(const PluginCalls* calls, OnStuck on_stuck) { watched_.push_back({calls, std::move(on_stuck)}); }

  // Throws std::system_error if there is no thread to be had.
  void Start();
  void Stop();

 private:
  struct Watched {
    const PluginCalls* calls;
    OnStuck on_stuck;
    uint64_t call = 0;  // seen last
    Time since = 0;     // when it was seen first
    bool warned = false;
    bool ended = false;
  };

  void Run();
  void Look(Time now, Watched* watched) const;

  const std::string whom_;
  const Time limit_;
  const Logger* const log_;
  std::vector<Watched> watched_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_WATCHDOG_H_
