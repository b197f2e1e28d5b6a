// idleness.h - that processes with nothing to do use no processor: each below 1% of one, and seldom woken.
//
//     EXPECT_TRUE(AreIdle({server.pid()}, [](Time time) { ... }));   // `time` has passed when it returns
//
// A noisy machine adds to what a process uses, and never takes from it: so the best of a few windows counts, of each
// process its own. Who polls, or wakes again and again, does so in all of them.
#ifndef BYTEPS_TESTS_SERVER_PROCESS_IDLENESS_H_
#define BYTEPS_TESTS_SERVER_PROCESS_IDLENESS_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <vector>

#include "core/base/time.h"

namespace byteps {

// User and system time of all threads it has had, to the nanosecond; kNever if it is no more.
Time CpuTime(pid_t pid);

// What is asked of processes. A wake-up costs some ten microseconds: a thousand a second would pass for idle by their
// time alone.
struct IdleBounds {
  double share = 0.01;  // of one processor
  double wakes = 50;    // of all threads together, in a second
};

testing::AssertionResult AreIdle(const std::vector<pid_t>& processes, const std::function<void(Time)>& pass,
                                 const IdleBounds& bounds = {});
// While this thread does nothing either.
testing::AssertionResult AreIdle(const std::vector<pid_t>& processes, const IdleBounds& bounds = {});

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_PROCESS_IDLENESS_H_
