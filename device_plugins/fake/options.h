// options.h - what the fake GPUs of this process are like: the variable BYTEPS_FAKE_GPU.
//
//     Options options = ReadOptions("devices=2,schedule=random,seed=7,memory=67108864");
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_OPTIONS_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_OPTIONS_H_

#include <cstdint>
#include <string>

namespace byteps::fake {

enum class Schedule {
  kEarly,   // work runs as soon as it may
  kLate,    // work runs when a wait or a query needs it, and not before
  kRandom,  // some of what may run, at each call
};

struct Options {
  int devices = 1;
  Schedule schedule = Schedule::kLate;
  uint64_t seed = 1;
  uint64_t memory = uint64_t{1} << 30;  // bytes of each device
  uint64_t patience = 3;                // kLate: less than so many queries of an event are in vain, by seed
};

// Throws Error: INVALID_ARGUMENT.
Options ReadOptions(const std::string& text);

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_OPTIONS_H_
