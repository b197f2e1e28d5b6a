// random.h - the simulation's only source of chance: the same seed gives the same numbers on every machine.
//
//     Random random(seed);
//     if (random.Chance(0.1)) ...
//     Time jitter = random.Between(0, 1000);
//
// (The distributions of <random> differ between standard libraries; seeds are kept as tests, so they must not.)
#ifndef BYTEPS_TRANSPORT_PLUGINS_SIM_RANDOM_H_
#define BYTEPS_TRANSPORT_PLUGINS_SIM_RANDOM_H_

#include <cstdint>

namespace byteps::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // Any 64 bits (splitmix64).
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // 0 .. bound-1; 0 if bound is 0.
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : Next() % bound; }

  // low .. high, both included.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }

  // True with this probability, 0 to 1.
  bool Chance(double probability) {
    return probability > 0 && static_cast<double>(Next() >> 11) * 0x1.0p-53 < probability;
  }

 private:
  uint64_t state_;
};

}  // namespace byteps::sim

#endif  // BYTEPS_TRANSPORT_PLUGINS_SIM_RANDOM_H_
