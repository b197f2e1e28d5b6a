// device_collective_scenarios.h - bps_collective on the memory of GPUs, for device_worker.cc.
//
// Threads: one. Errors: as device_trainer.h.
#ifndef BYTEPS_TESTS_E2E_DEVICE_COLLECTIVE_SCENARIOS_H_
#define BYTEPS_TESTS_E2E_DEVICE_COLLECTIVE_SCENARIOS_H_

#include <string>

namespace byteps {

// Rounds of every kind, of several sizes, in a stream that the host does not wait for; the steady state makes nothing.
// The rank of E2E_CPU_RANK has its tensors on the host.
void RunCollectives();
// Every data type, scaled or not, through servers and among workers: the bits of the same on the host.
void RunCollectiveBits();
// Messages of one tag whose inputs are ready in another order than that of their submission.
void RunCollectiveMessages();
// Groups of operations on the memory of GPUs and of the host.
void RunCollectiveGroups();
// What callers get wrong: each an error that says what, and the session goes on.
void RunCollectiveErrors();
// Operations that end early: by a cancel, a deadline, a lost GPU, the end of the session.
void RunCollectiveEnds(const std::string& how);
// Until rank 1 is killed: the others hear of it.
void RunCollectivesUntilKilled();

}  // namespace byteps

#endif  // BYTEPS_TESTS_E2E_DEVICE_COLLECTIVE_SCENARIOS_H_
