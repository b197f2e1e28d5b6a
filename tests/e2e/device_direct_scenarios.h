// device_direct_scenarios.h - a trainer whose network card reads and writes the memory of its GPU: direct.
//
// E2E_DIRECT: "card", if it is to do so, or "host", if all goes through pinned memory.
#ifndef BYTEPS_TESTS_E2E_DEVICE_DIRECT_SCENARIOS_H_
#define BYTEPS_TESTS_E2E_DEVICE_DIRECT_SCENARIOS_H_

namespace byteps {

void RunDirect();

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_DEVICE_DIRECT_SCENARIOS_H_
