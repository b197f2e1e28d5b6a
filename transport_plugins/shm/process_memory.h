// process_memory.h - reading and writing the memory of another process of this host (process_vm_readv, _writev).
//
//     if (int error = ReadProcess(pid, address, buffer, size); Refused(error)) ... go another way
//
// Both answer 0 when all bytes were copied, else an errno: ESRCH: no such process; EFAULT: not mapped there or here;
// EPERM, EACCES, ENOSYS: not allowed here (a seccomp filter, Yama, other capabilities or another user): see Refused.
//
// Threads: any.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_PROCESS_MEMORY_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_PROCESS_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace byteps::shm {

int ReadProcess(pid_t pid, uint64_t address, void* to, size_t size);
int WriteProcess(pid_t pid, uint64_t address, const void* from, size_t size);

// Is this an answer that will stay the same?
bool Refused(int error);

// Where Yama lets only ancestors read a process (ptrace_scope 1): lets `launcher` and its descendants, among them the
// workers and servers it has started, read this one. True if that was done.
bool PermitDescendantsOf(pid_t launcher);

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_PROCESS_MEMORY_H_
