#include "transport_plugins/libfabric/locked_memory.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace byteps::fabric {
namespace {

bool MayLockWithoutLimit() {
  __user_cap_header_struct header{};
  header.version = _LINUX_CAPABILITY_VERSION_3;
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

}  // namespace

LockedMemoryLimit ReadLockedMemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return {};
  return {limit.rlim_cur == RLIM_INFINITY || MayLockWithoutLimit(), limit.rlim_cur};
}

std::string LockedMemoryComplaint(const LockedMemoryLimit& limit, uint64_t least) {
  if (limit.unlimited || limit.bytes >= least) return "";
  return "this process may lock " + std::to_string(limit.bytes >> 10) +
         " KiB of memory (ulimit -l), and RDMA keeps its buffers locked, at least " + std::to_string(least >> 20) +
         " MiB; raise the limit before the start: \"ulimit -l unlimited\", memlock in /etc/security/limits.conf, "
         "LimitMEMLOCK=infinity for a service, --ulimit memlock=-1 for a container";
}

}  // namespace byteps::fabric
