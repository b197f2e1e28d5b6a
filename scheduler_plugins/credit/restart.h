// restart.h - behind silence, a part after the other: how fast the first tasks of a burst may be handed over.
//
//     Restart restart;
//     if (restart.OpensAt() <= now) restart.Started(now, task.peer, task.bytes);
//     restart.Home(now, task.peer, task.bytes, since); // its result is here; others wait to go `since` then
//     restart.Lost(task.peer);                         // it ended without one
//
// A connection that was silent for a retransmission timeout begins again with a few packets (RFC 5681, section 4.1; in
// Linux tcp_slow_start_after_idle). What is handed over at once then goes to all peers at the same time, each
// connection with its share of the link, and second parts go between first ones: no peer has a part of all workers
// before several rows' time, and no result begins. The results' connections were silent, too, and grow with each
// acknowledgement, which waits behind all that is in the worker's queue. So behind kSilence the first tasks go as the
// link carries them for kGently: parts arrive one after the other, and the queue stays short while the connections
// grow.
//
// The rate of the link is the sum of the rates at which each peer's results came home while something was under way to
// it and more waited to go: one peer that is slow, and that all wait for in the end, does not make it a slow link, nor
// do a few small tensors that no link is full of. It is measured in windows of kWindow such results, in which some peer
// was busy for kWindowTime; of the last kWindows the fastest counts, as waiting for a slow worker is not the link's,
// either. A little faster than that (kGain), so that an error does not leave the link empty. Too low a rate costs a
// part of kGently once a silence, too high a one nothing.
//
// A burst that is over while tasks still go gently tells nothing but the rate that they go by, and would keep for ever
// one that was true once. So what has been seen of such a burst is thrown away, and the rate doubted: with each silence
// without a full window since the one before it is taken for kDoubt times higher.
//
// Nothing is held back before a window is full, and on links faster than kFastest (as in pace.h).
//
// Threads: none; a pure function of the calls. Units: bytes and nanoseconds.
#ifndef BYTEPS_SCHEDULER_PLUGINS_CREDIT_RESTART_H_
#define BYTEPS_SCHEDULER_PLUGINS_CREDIT_RESTART_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace byteps::credit {

class Restart {
 public:
  static constexpr int64_t kSilence = 200'000'000;  // Linux's least retransmission timeout
  static constexpr int64_t kGently = 60'000'000;
  static constexpr double kGain = 1.03;
  static constexpr double kDoubt = 1.25;
  static constexpr double kFastest = 250e6;  // bytes per second
  static constexpr uint64_t kWindow = 64;
  static constexpr int64_t kWindowTime = 300'000'000;
  static constexpr size_t kWindows = 4;
  static constexpr int64_t kTimer = 2'000'000;  // timers may come so late without a gap

  // A task was answered.
  void Started(int64_t now, uint32_t peer, uint64_t bytes);
  // Its result is home. `waits_since`: all the time since then something has waited to go; INT64_MAX: nothing does.
  void Home(int64_t now, uint32_t peer, uint64_t bytes, int64_t waits_since);
  // It ended without one.
  void Lost(uint32_t peer);
  // Others are there: what is known of the link says nothing any more.
  void Forget();

  // The next task may go from then on; INT64_MIN: at once.
  int64_t OpensAt() const { return gentle_ ? std::min(link_until_ - kTimer, gently_until_) : INT64_MIN; }

  // Bytes per second, as measured; 0: not known.
  double rate() const;

 private:
  // What has come from one peer in this window.
  struct Source {
    uint64_t under_way = 0;  // tasks
    bool busy = false;       // something was, all the time since the last result
    int64_t home = 0;        // the last result
    uint64_t bytes = 0;      // of results behind such times
    int64_t time = 0;        // all of those
  };

  void CloseWindow();
  void ClearWindow();

  int64_t started_ = INT64_MIN / 2;  // the last task
  int64_t gently_until_ = INT64_MIN;
  double gentle_rate_ = 0;  // of the link, as it was taken for at the silence
  bool gentle_ = false;
  int64_t link_until_ = 0;  // busy with what was handed over

  uint64_t window_results_ = 0;
  std::unordered_map<uint32_t, Source> sources_;  // by peer
  std::array<double, kWindows> rates_ = {};
  size_t next_rate_ = 0;
  bool confirmed_ = false;  // a window has been full since the last silence
  double doubt_ = 1;        // how many times higher the rate is taken for
};

}  // namespace byteps::credit

#endif  // BYTEPS_SCHEDULER_PLUGINS_CREDIT_RESTART_H_
