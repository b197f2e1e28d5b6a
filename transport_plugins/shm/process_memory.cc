#include "transport_plugins/shm/process_memory.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "transport_plugins/shm/unique_fd.h"

namespace byteps::shm {
namespace {

// One call moves at most 2 GiB; less keeps a signal waiting for less long.
constexpr size_t kMost = size_t{64} << 20;

template <typename Call>
int Move(Call call, pid_t pid, void* local, uint64_t remote, size_t size) {
  size_t done = 0;
  while (done < size) {
    iovec here{static_cast<char*>(local) + done, std::min(size - done, kMost)};
    iovec there{reinterpret_cast<void*>(remote + done), here.iov_len};
    const ssize_t moved = call(pid, &here, 1, &there, 1, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EFAULT;
    done += static_cast<size_t>(moved);  // less than asked: the next call says why
  }
  return 0;
}

}  // namespace

int ReadProcess(pid_t pid, uint64_t address, void* to, size_t size) {
  return Move(::process_vm_readv, pid, to, address, size);
}

int WriteProcess(pid_t pid, uint64_t address, const void* from, size_t size) {
  return Move(::process_vm_writev, pid, const_cast<void*>(from), address, size);
}

bool Refused(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

bool PermitDescendantsOf(pid_t launcher) {
  const UniqueFd fd(::open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC));
  char scope = 0;
  if (launcher <= 1 || !fd || ::read(fd.get(), &scope, 1) != 1 || scope != '1') return false;
  return ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(launcher), 0, 0, 0) == 0;
}

}  // namespace byteps::shm
