#include "core/rate_meter.h"

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

TEST(RateMeterTest, TheBestOfTheLastWindows) {
  RateMeter meter;
  meter.Begin(0);
  Time now = 0;
  const auto window = [&](Time took) {
    now += took;
    meter.Add(now, RateMeter::kWindow);
  };
  window(kSecond);
  window(kSecond / 4);
  for (size_t i = 0; i + 1 < RateMeter::kWindows; ++i) {
    window(2 * kSecond);
    EXPECT_EQ(meter.bytes_per_second(), 4 * RateMeter::kWindow);
  }
  window(2 * kSecond);
  EXPECT_EQ(meter.bytes_per_second(), RateMeter::kWindow / 2);
}

}  // namespace
}  // namespace byteps
