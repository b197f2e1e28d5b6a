// hindered.cc - runs a program that the system lets look into other processes less than others.
//
//     hindered HOW PROGRAM [ARGUMENT]...
//
//     unprivileged   not into processes which forbid it, not even as root
//     powerless      not, without a capability, into processes that have some
//     filtered       nowhere: process_vm_readv and process_vm_writev answer EPERM, as many containers have it
//     apart          not into those of other PID namespaces: it has one of its own
//     files=N        it looks where it may, but may have N open files only
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/transport_plugins/shm/process_memory_filter.h"

namespace {

// A process without them cannot drop any, and gets none from exec either.
bool Drop(int first, int last) {
  for (int capability = first; capability <= last; ++capability) ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  return true;
}

// Returns in the child, which is the first process of the namespace; here is waited for it.
bool Part() {
  if (::unshare(CLONE_NEWPID) != 0) return false;
  const pid_t child = ::fork();
  if (child < 0) return false;
  if (child == 0) return ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

bool LimitFiles(int files) {
  const rlimit limit = {static_cast<rlim_t>(files), static_cast<rlim_t>(files)};
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string_view how = argv[1];
  const bool done = how == "unprivileged"       ? Drop(CAP_SYS_PTRACE, CAP_SYS_PTRACE)
                    : how == "powerless"        ? Drop(0, CAP_LAST_CAP)
                    : how == "filtered"         ? byteps::testing::ForbidProcessMemory()
                    : how == "apart"            ? Part()
                    : how.starts_with("files=") ? LimitFiles(std::atoi(argv[1] + 6))
                                                : false;
  if (!done) {
    std::perror(argv[1]);
    return 126;
  }
  ::execv(argv[2], argv + 2);
  std::perror(argv[2]);
  return 127;
}
