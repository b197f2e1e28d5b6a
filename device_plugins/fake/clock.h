// clock.h - a vector clock: what an actor (a stream, or the host) has seen of all others.
//
//     mine.Tick(actor);                     // it does something: at time mine.At(actor)
//     mine.Join(theirs);                    // it has waited for another
//     bool after = mine.At(other) >= time;  // what `other` did at `time` is ordered before what this one does now
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_CLOCK_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_CLOCK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace byteps::fake {

class Clock {
 public:
  uint64_t At(size_t actor) const { return actor < times_.size() ? times_[actor] : 0; }

  void Tick(size_t actor) {
    if (actor >= times_.size()) times_.resize(actor + 1);
    ++times_[actor];
  }

  void Join(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t actor = 0; actor < other.times_.size(); ++actor) {
      times_[actor] = std::max(times_[actor], other.times_[actor]);
    }
  }

 private:
  std::vector<uint64_t> times_;
};

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_CLOCK_H_
