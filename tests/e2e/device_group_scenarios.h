// device_group_scenarios.h - scenarios of device_worker.cc: the GPUs of a host reduce among themselves.
//
// Threads: one. Errors: a check that fails prints why and ends the process with 1.
#ifndef BYTEPS_TESTS_E2E_DEVICE_GROUP_SCENARIOS_H_
#define BYTEPS_TESTS_E2E_DEVICE_GROUP_SCENARIOS_H_

#include <string>

namespace byteps {

// Tensors of many sizes and two reductions, in flight together; the counts of copies tell which way they went, and
// E2E_GROUP which way they should go.
void RunGroup();
// Every data type with every reduction that it has.
void RunGroupDtypes();
// Every type of floats with every reduction, beside the same tensors in the memory of the CPU: the same bits.
void RunGroupBits();
// Steps without an end, until the test kills rank 1: the error names it.
void RunGroupUntilKilled();
// One operation that cannot end: by its deadline it is an error on every rank, and rank 1's contains `expected`.
void RunGroupStuck(const std::string& expected);

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_DEVICE_GROUP_SCENARIOS_H_
