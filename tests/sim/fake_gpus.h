// fake_gpus.h - the simulated GPUs of a test in the simulation: made anew, and what they have counted and reported.
//
//     UseGpus(job.workers(), seed);          // before the first device is opened
//     ...
//     EXPECT_EQ(Counts().streams, before.streams);
//     ExpectNoRaces();
#ifndef BYTEPS_TESTS_SIM_FAKE_GPUS_H_
#define BYTEPS_TESTS_SIM_FAKE_GPUS_H_

#include <cstdint>
#include <string>

#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"

namespace byteps {

inline const fake_gpu_control& FakeGpu() { return *bps_fake_gpu(); }

inline fake_gpu_counts Counts() {
  fake_gpu_counts counts;
  FakeGpu().counts(&counts);
  return counts;
}

inline void ExpectNoRaces() {
  char text[400] = "";
  FakeGpu().race(0, text, sizeof text);
  EXPECT_EQ(Counts().races, 0u) << text;
}

// The seed chooses the schedule, too.
inline void UseGpus(uint32_t devices, uint64_t seed) {
  const char* schedules[] = {"late", "early", "random"};
  const std::string options =
      "devices=" + std::to_string(devices) + ",schedule=" + schedules[seed % 3] + ",seed=" + std::to_string(seed);
  ASSERT_EQ(FakeGpu().reset(options.c_str()), 1);
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_FAKE_GPUS_H_
