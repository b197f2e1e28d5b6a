#include "tools/info/host_report.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/info/sysfs.h"

namespace byteps {
namespace {

// Registered memory of a worker or server over RDMA comes near this in any real job.
constexpr uint64_t kEnoughLocked = uint64_t{1} << 30;

// "20 GiB" of "21063892 kB".
std::string Kilobytes(const std::string& field) { return Bytes(std::strtoull(field.c_str(), nullptr, 10) * 1024); }

int UsableCores() {
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : -1;
}

HostFact Cores(const std::string& root) {
  const std::string online = ReadLine(root + "/sys/devices/system/cpu/online");
  const int usable = UsableCores();
  std::string text = absl::StrCat(usable, " usable by this process, online: ", online.empty() ? "unknown" : online);
  // "50000 100000": microseconds of processor time in each period; "max" where there is no limit.
  const std::string quota = ReadLine(root + "/sys/fs/cgroup/cpu.max");
  const double allowed = std::strtod(quota.c_str(), nullptr);
  const size_t space = quota.find(' ');
  const double period = space == std::string::npos ? 0 : std::strtod(quota.c_str() + space, nullptr);
  if (allowed > 0 && period > 0) absl::StrAppend(&text, "; its control group may use ", allowed / period, " of them");
  return {"cores", text};
}

HostFact Numa(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  std::vector<std::string> nodes;
  for (const std::string& name : Entries(folder)) {
    if (name.rfind("node", 0) != 0 || name.size() == 4) continue;
    const std::string memory = ReadField(folder + "/" + name + "/meminfo", "MemTotal");
    nodes.push_back(absl::StrCat("node ", name.substr(4), " with cores ", ReadLine(folder + "/" + name + "/cpulist"),
                                 " and ", Kilobytes(memory)));
  }
  if (nodes.empty()) return {"NUMA", "the kernel tells of no nodes"};
  return {"NUMA", absl::StrJoin(nodes, "; ")};
}

HostFact Memory(const std::string& root) {
  const std::string file = root + "/proc/meminfo";
  std::string text =
      absl::StrCat(Kilobytes(ReadField(file, "MemTotal")), ", available ", Kilobytes(ReadField(file, "MemAvailable")));
  const std::string limit = ReadLine(root + "/sys/fs/cgroup/memory.max");
  if (!limit.empty() && limit != "max") {
    absl::StrAppend(&text, "; its control group may use ", Bytes(std::strtoull(limit.c_str(), nullptr, 10)));
  }
  return {"memory", text};
}

HostFact LockedMemory(const std::string& root, uint64_t limit) {
  const bool rdma = !Entries(root + "/sys/class/infiniband").empty();
  if (limit == kUnlimited) return {"locked memory", "unlimited"};
  std::string text = absl::StrCat("at most ", Bytes(limit), " (ulimit -l); tcp and shm lock none");
  if (limit < kEnoughLocked) {
    absl::StrAppend(&text, rdma
                               ? "; too little for verbs and efa: \"ulimit -l unlimited\" before the start (memlock in "
                                 "/etc/security/limits.conf, LimitMEMLOCK=infinity of a service, --ulimit memlock=-1 "
                                 "of a container)"
                               : "; verbs and efa would need more");
  }
  return {"locked memory", text};
}

// "madvise" of "always [madvise] never".
std::string Chosen(const std::string& line) {
  const size_t begin = line.find('[');
  const size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "unknown";
  return line.substr(begin + 1, end - begin - 1);
}

HostFact HugePages(const std::string& root) {
  const std::string folder = root + "/sys/kernel/mm/transparent_hugepage";
  const std::string mode = Chosen(ReadLine(folder + "/enabled"));
  std::string text = absl::StrCat("transparent: ", mode);
  if (mode == "never") text += " (copies between processes find their pages one by one: always or madvise is faster)";
  absl::StrAppend(&text, ", of shared memory: ", Chosen(ReadLine(folder + "/shmem_enabled")));
  const std::string file = root + "/proc/meminfo";
  absl::StrAppend(&text, "; reserved: ", ReadField(file, "HugePages_Total"), " of ",
                  Kilobytes(ReadField(file, "Hugepagesize")), ", free ", ReadField(file, "HugePages_Free"));
  return {"huge pages", text};
}

HostFact SharedMemory(const std::string& root) {
  struct statvfs space = {};
  if (statvfs((root + "/dev/shm").c_str(), &space) != 0) return {"shared memory", "no /dev/shm; shm does not need it"};
  return {"shared memory", absl::StrCat("/dev/shm of ", Bytes(uint64_t{space.f_blocks} * space.f_frsize),
                                        "; shm takes its memory from memfd, which that does not limit")};
}

HostFact OtherProcesses(const std::string& root) {
  const int64_t scope = ReadNumber(root + "/proc/sys/kernel/yama/ptrace_scope", 0);
  if (scope <= 0) return {"other processes", "memory of those of the same user can be read and written (no Yama)"};
  if (scope == 1) {
    return {"other processes",
            "Yama (ptrace_scope 1) lets a process into the memory of its descendants: the workers permit bpslaunch "
            "and all below it"};
  }
  return {"other processes", absl::StrCat("Yama (ptrace_scope ", scope,
                                          ") closes their memory: shm copies through a ring, and so do workers "
                                          "that reduce among themselves; ptrace_scope 0 or 1 is faster")};
}

}  // namespace

uint64_t LockedMemoryLimit() {
  __user_cap_header_struct header = {};
  header.version = _LINUX_CAPABILITY_VERSION_3;
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) == 0 &&
      (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0) {
    return kUnlimited;
  }
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return limit.rlim_cur;
}

std::vector<HostFact> HostFacts(const std::string& root, uint64_t locked_memory) {
  return {Cores(root),     Numa(root),         Memory(root),        LockedMemory(root, locked_memory),
          HugePages(root), SharedMemory(root), OtherProcesses(root)};
}

std::string HostReport(const std::string& root, uint64_t locked_memory) {
  std::string report;
  for (const HostFact& fact : HostFacts(root, locked_memory)) {
    std::string line = "  " + fact.subject;
    line.resize(18, ' ');
    absl::StrAppend(&report, line, fact.text, "\n");
  }
  return report;
}

}  // namespace byteps
