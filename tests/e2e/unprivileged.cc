// unprivileged.cc - runs a program that may not look into processes which forbid it, not even as root.
//
//     unprivileged PROGRAM [ARGUMENT]...
#include <linux/capability.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  // Who has none to drop has not got it, and does not get it from exec either.
  ::prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0);
  ::execv(argv[1], argv + 1);
  std::perror(argv[1]);
  return 127;
}
