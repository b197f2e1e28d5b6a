// process_memory_filter.h - no way into the memory of other processes, as in many containers; or no way to end them, as
// those of other users.
//
//     if (!ForbidProcessMemory()) ...          // errno says why
//
// From then on process_vm_readv and process_vm_writev (ForbidSignals: pidfd_send_signal) answer EPERM in the calling
// thread, in whatever it starts, and behind exec. There is no way back.
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_PROCESS_MEMORY_FILTER_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_PROCESS_MEMORY_FILTER_H_

namespace byteps::testing {

bool ForbidProcessMemory();
bool ForbidSignals();

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_PROCESS_MEMORY_FILTER_H_
