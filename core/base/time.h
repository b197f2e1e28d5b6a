// time.h - the time of step functions: nanoseconds of a monotonic (or simulated) clock, handed in as `now`.
//
//     client.Tick(Now());                       // a shell asks the clock; a step function never does
//     deadline = After(now, options.timeout);   // does not overflow: kNever stays kNever
#ifndef BYTEPS_CORE_BASE_TIME_H_
#define BYTEPS_CORE_BASE_TIME_H_

#include <time.h>

#include <cstdint>
#include <limits>

namespace byteps {

// A moment, or a length of time.
using Time = int64_t;

inline constexpr Time kMillisecond = 1000 * 1000;
inline constexpr Time kSecond = 1000 * kMillisecond;
// Later than every moment.
inline constexpr Time kNever = std::numeric_limits<Time>::max();

// `now + delay`, or kNever where that cannot be told.
constexpr Time After(Time now, Time delay) { return delay >= kNever - now ? kNever : now + delay; }

// `milliseconds` of a message or a configuration; what is too long to count is kNever.
constexpr Time FromMilliseconds(int64_t milliseconds) {
  return milliseconds >= kNever / kMillisecond ? kNever : milliseconds * kMillisecond;
}

// The monotonic clock of this host.
inline Time Now() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Time>(now.tv_sec) * kSecond + now.tv_nsec;
}

// What poll(2) takes to wake at `timer`: -1 for kNever, and never early.
constexpr int PollTimeout(Time now, Time timer) {
  if (timer == kNever) return -1;
  if (timer <= now) return 0;
  const Time milliseconds = (timer - now + kMillisecond - 1) / kMillisecond;
  return milliseconds > 60 * 1000 ? 60 * 1000 : static_cast<int>(milliseconds);
}

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_TIME_H_
