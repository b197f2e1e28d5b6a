// laps.h - how often the tensors of a stream have come round.
//
//     Laps laps;
//     const uint16_t then = laps.count();
//     laps.Went(tensor, round);                              // of each task that goes
//     static_cast<uint16_t>(laps.count() - then) >= 2        // some tensor went in two rounds since
//
// It is not known how many tensors there are, or which of them will come again. So one is watched, and each new round
// of it is a lap; after 1, 2, 4, 8, ... tasks without a lap another one is. Once that is more tasks than a round has,
// whatever is watched comes again (R. P. Brent, "An improved Monte Carlo factorization algorithm", BIT 20, 1980,
// section 2). The first of two laps may be of a tensor that went before `then`, too. Not so the second.
//
// The count is modulo 2^16. Threads: one at a time. Errors: none.
#ifndef BYTEPS_SCHEDULER_PLUGINS_COMMON_LAPS_H_
#define BYTEPS_SCHEDULER_PLUGINS_COMMON_LAPS_H_

#include <cstdint>

namespace byteps::scheduling {

class Laps {
 public:
  uint16_t count() const { return count_; }

  // `round` is not 0: bps_task's, modulo 2^32.
  void Went(uint64_t tensor, uint32_t round) {
    if (tensor == watched_ && round_ != 0) {
      // Parts of an earlier round may be behind.
      if (static_cast<int32_t>(round - round_) <= 0) return;
      ++count_;
    } else if (++went_ < patience_) {
      return;
    } else {
      watched_ = tensor;
      if (patience_ < kMostPatience) patience_ *= 2;
    }
    round_ = round;
    went_ = 0;
  }

 private:
  static constexpr uint32_t kMostPatience = 1U << 30;

  uint64_t watched_ = 0;
  uint32_t round_ = 0;  // of what is watched; 0: nothing is
  uint32_t went_ = 0;   // others, since the last lap or since it is watched
  uint32_t patience_ = 1;
  uint16_t count_ = 0;
};

}  // namespace byteps::scheduling

#endif  // BYTEPS_SCHEDULER_PLUGINS_COMMON_LAPS_H_
