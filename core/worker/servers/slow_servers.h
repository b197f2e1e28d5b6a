// slow_servers.h - which server keeps this worker waiting.
//
//     SlowServers slow;
//     slow.Add(server, now - posted_at);                  // a partition of this server is home
//     if (std::optional<SlowServers::Finding> finding = slow.Check(now)) Warn(*finding);
//
// A tensor is as slow as its slowest partition, so one server with a bad link holds up all others, and from outside all
// look alike. Here the time from a partition's push to its result is averaged for each server over a window of some
// seconds, longer if there were too few of them. A server is slow if in several windows in a row its partitions take
// several times as long as those of the others in the median, and long enough to matter. (In one window some server is
// always last: connections that share a link do not share it evenly.) A slow worker makes all servers slow, and names
// none.
//
// It is the partitions' time that counts, and it grows with what waits in front of a link: where no worker waits for a
// server whose link is half as fast, it is not named; where all links are full all the time, one that carries a sixth
// less is.
//
// Threads: none. Units: Time, nanoseconds.
#ifndef BYTEPS_CORE_WORKER_SERVERS_SLOW_SERVERS_H_
#define BYTEPS_CORE_WORKER_SERVERS_SLOW_SERVERS_H_

#include <cstdint>
#include <map>
#include <optional>

#include "core/base/time.h"

namespace byteps {

class SlowServers {
 public:
  static constexpr Time kWindow = 5 * kSecond;
  static constexpr int kWindows = 3;              // with kTimesLonger; twice as many with kTimesSuspect
  static constexpr Time kSilence = 60 * kSecond;  // until the same one is named again
  static constexpr uint64_t kLeastPartitions = 4;
  static constexpr Time kTimesLonger = 3;
  static constexpr Time kTimesSuspect = 2;
  static constexpr Time kLongerBy = 20 * kMillisecond;

  struct Finding {
    uint32_t server = 0;  // rank
    Time mean = 0;        // of its partitions
    Time others = 0;      // median of the means of the others
  };

  // A partition of this server took so long from its push to its result.
  void Add(uint32_t server, Time took);

  // At the end of a window: the slowest server, if it is slow and was not named of late. Begins the next window.
  std::optional<Finding> Check(Time now);

 private:
  struct Sum {
    uint64_t partitions = 0;
    Time time = 0;
  };

  std::map<uint32_t, Sum> sums_;    // of the window, by server
  uint32_t suspect_ = 0;            // the slowest of the last window
  int evidence_ = 0;                // 2 for each window in a row, or 1; 0: there was none
  std::map<uint32_t, Time> named_;  // when last
  std::optional<Time> window_;      // its beginning
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_SLOW_SERVERS_H_
