// interruptible.h - a blocking call of the library that Ctrl-C can end.
//
//     RunInterruptible([=] { Check(*library, library->bps_barrier(session, &args)); });
//
// Python runs signal handlers on the main thread between two bytecodes, so a call that blocks in C for minutes (waiting
// until every worker of a job has been started) would make Ctrl-C useless. The call therefore runs on a thread of its
// own, and the caller looks for signals while it waits. If a handler raises, the call is abandoned: it ends by itself
// when its deadline has passed, and `abandoned` then cleans up after it.
//
// `call` and `abandoned` run without the GIL and must own everything they touch.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_INTERRUPTIBLE_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_INTERRUPTIBLE_H_

#include <chrono>
#include <functional>

namespace byteps::python {

// How long a wait may keep a signal waiting.
inline constexpr std::chrono::milliseconds kSignalInterval{100};

// Runs the Python handlers of signals that have arrived. Throws pybind11::error_already_set if one raises. Needs the
// GIL.
void CheckSignals();

// Runs `call`; throws what it throws. Needs the GIL, and releases it meanwhile. `abandoned` runs after an abandoned
// call that did not throw.
void RunInterruptible(
    std::function<void()> call, std::function<void()> abandoned = [] {});

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_INTERRUPTIBLE_H_
