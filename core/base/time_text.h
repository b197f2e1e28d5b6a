// time_text.h - a length of time in the words of errors and logs.
//
//     "silent for " + SecondsText(WholeSeconds(now - last_heard))      // "silent for 3 s"
#ifndef BYTEPS_CORE_BASE_TIME_TEXT_H_
#define BYTEPS_CORE_BASE_TIME_TEXT_H_

#include <string>

#include "core/base/time.h"

namespace byteps {

// "2 s", "0.25 s": to the millisecond.
std::string SecondsText(Time time);

// Without the rest, for what was measured.
constexpr Time WholeSeconds(Time time) { return time / kSecond * kSecond; }

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_TIME_TEXT_H_
