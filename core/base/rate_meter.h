// rate_meter.h - how fast bytes come while they come.
//
//     RateMeter meter;
//     meter.Begin(now);                // after a pause, which does not count
//     meter.Add(now, bytes);
//     meter.bytes_per_second()         // the best of late; 0: not known yet
//
// The best, because what slows bytes down (waiting for others, for computation, for the scheduler of the machine) is
// not the path; over several windows in a row, because bytes that had piled up somewhere come at once: the same part of
// a tensor from many servers, three megabytes in no time, after a pause of the same length.
//
// Threads: none.
#ifndef BYTEPS_CORE_BASE_RATE_METER_H_
#define BYTEPS_CORE_BASE_RATE_METER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/time.h"

namespace byteps {

class RateMeter {
 public:
  static constexpr uint64_t kWindow = uint64_t{2} << 20;
  static constexpr size_t kWindows = 16;
  static constexpr size_t kInARow = 4;

  void Begin(Time now) {
    begin_ += now - last_;
    last_ = now;
  }

  void Add(Time now, uint64_t bytes) {
    last_ = now;
    bytes_ += bytes;
    if (bytes_ < kWindow || now <= begin_) return;
    windows_[count_ % kWindows] = {bytes_, now - begin_};
    ++count_;
    begin_ = now;
    bytes_ = 0;
  }

  uint64_t bytes_per_second() const {
    if (count_ == 0) return 0;
    const size_t known = std::min(count_, kWindows);
    const size_t in_a_row = std::min(known, kInARow);
    double best = 0;
    for (size_t first = count_ - known; first + in_a_row <= count_; ++first) {
      uint64_t bytes = 0;
      Time time = 0;
      for (size_t window = first; window < first + in_a_row; ++window) {
        bytes += windows_[window % kWindows].bytes;
        time += windows_[window % kWindows].time;
      }
      best = std::max(best, static_cast<double>(bytes) * 1e9 / static_cast<double>(time));
    }
    return static_cast<uint64_t>(best);
  }

 private:
  struct Window {
    uint64_t bytes;
    Time time;
  };

  Time begin_ = 0;  // of the window, moved by the pauses in it
  Time last_ = 0;
  uint64_t bytes_ = 0;
  std::array<Window, kWindows> windows_{};
  size_t count_ = 0;  // of the windows there ever were
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_RATE_METER_H_
