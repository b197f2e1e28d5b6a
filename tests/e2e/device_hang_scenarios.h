// device_hang_scenarios.h - scenarios of device_worker.cc: a call of the device plugin that never returns.
//
// Threads: one of the scenarios starts another. Errors: a check that fails prints why and ends the process with 1.
#ifndef BYTEPS_TESTS_E2E_DEVICE_HANG_SCENARIOS_H_
#define BYTEPS_TESTS_E2E_DEVICE_HANG_SCENARIOS_H_

#include <string>

namespace byteps {

// "VERB" or "collective VERB": on the last rank the library's thread calls VERB and does not return from it, in the
// middle of an operation. On every rank the operation ends, and the error names the plugin and the verb.
void RunHang(const std::string& what);
// On the last rank bps_close calls VERB, which does not return: the session is closed without it.
void RunHangOfClose(const std::string& verb);
// A thread of the program does not return from opening another GPU: operations on the first one go on.
void RunHangOfACaller();

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_DEVICE_HANG_SCENARIOS_H_
