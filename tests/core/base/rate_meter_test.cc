#include "core/base/rate_meter.h"

#include "gtest/gtest.h"

namespace byteps {
namespace {

TEST(RateMeterTest, NothingIsKnownBeforeAWindowIsFull) {
  RateMeter meter;
  meter.Begin(5 * kSecond);
  meter.Add(6 * kSecond, RateMeter::kWindow - 1);
  EXPECT_EQ(meter.bytes_per_second(), 0u);
  meter.Add(6 * kSecond, 1);
  EXPECT_EQ(meter.bytes_per_second(), RateMeter::kWindow);
}

// A megabyte, half a second long, once a minute: two megabytes per second.
TEST(RateMeterTest, PausesDoNotCount) {
  RateMeter meter;
  for (Time minute = 0; minute < 10; ++minute) {
    meter.Begin(minute * 60 * kSecond);
    meter.Add(minute * 60 * kSecond + kSecond / 4, RateMeter::kWindow / 4);
    meter.Add(minute * 60 * kSecond + kSecond / 2, RateMeter::kWindow / 4);
  }
  EXPECT_EQ(meter.bytes_per_second(), RateMeter::kWindow);
}

class Meter {
 public:
  void Window(Time took) {
    now_ += took;
    meter_.Add(now_, RateMeter::kWindow);
  }
  // In windows per second.
  double rate() const { return static_cast<double>(meter_.bytes_per_second()) / RateMeter::kWindow; }

 private:
  RateMeter meter_;
  Time now_ = 0;
};

TEST(RateMeterTest, TheBestOfTheLastWindows) {
  Meter meter;
  meter.Window(kSecond);
  for (size_t i = 0; i < RateMeter::kInARow; ++i) meter.Window(kSecond / 4);
  for (size_t i = 0; i + RateMeter::kInARow < RateMeter::kWindows; ++i) {
    meter.Window(2 * kSecond);
    EXPECT_NEAR(meter.rate(), 4, 0.01) << i;
  }
  for (size_t i = 0; i < RateMeter::kInARow; ++i) meter.Window(2 * kSecond);
  EXPECT_NEAR(meter.rate(), 0.5, 0.01);
}

// The same part of a tensor comes from eight servers at once, then nothing for a while: one window takes no time, the
// next the whole.
TEST(RateMeterTest, WhatHadPiledUpIsNotSpeed) {
  Meter meter;
  for (int row = 0; row < 20; ++row) {
    meter.Window(kSecond / 1000);
    meter.Window(2 * kSecond);
    EXPECT_LT(meter.rate(), row == 0 ? 1001 : 1.1) << row;
  }
}

}  // namespace
}  // namespace byteps
