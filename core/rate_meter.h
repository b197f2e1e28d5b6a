// rate_meter.h - how fast bytes come while they come.
//
//     RateMeter meter;
//     meter.Begin(now);                // after a pause, which does not count
//     meter.Add(now, bytes);
//     meter.bytes_per_second()         // the best of the last windows; 0: not known yet
//
// The best, because what slows a window down (waiting for others, for computation, for the scheduler of the machine) is
// not the path; windows are large, so that what had piled up in a buffer does not pass for speed.
//
// Threads: none.
#ifndef BYTEPS_CORE_RATE_METER_H_
#define BYTEPS_CORE_RATE_METER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/time.h"

namespace byteps {

class RateMeter {
 public:
  static constexpr uint64_t kWindow = uint64_t{2} << 20;
  static constexpr size_t kWindows = 16;

  void Begin(Time now) {
    begin_ += now - last_;
    last_ = now;
  }

  void Add(Time now, uint64_t bytes) {
    last_ = now;
    bytes_ += bytes;
    if (bytes_ < kWindow || now <= begin_) return;
    rates_[next_] = static_cast<uint64_t>(static_cast<double>(bytes_) * 1e9 / static_cast<double>(now - begin_));
    next_ = (next_ + 1) % kWindows;
    begin_ = now;
    bytes_ = 0;
  }

  uint64_t bytes_per_second() const { return *std::max_element(rates_.begin(), rates_.end()); }

 private:
  Time begin_ = 0;  // of the window, moved by the pauses in it
  Time last_ = 0;
  uint64_t bytes_ = 0;
  std::array<uint64_t, kWindows> rates_{};
  size_t next_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_RATE_METER_H_
