#include "frameworks/python/native/exit_status.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace byteps::python {
namespace {

// glibc allows exit in a function that exit has called: the functions that are left run, with the new status.
void ExitWithOne(int status, void* process) {
  if (status == 0 && getpid() == static_cast<pid_t>(reinterpret_cast<intptr_t>(process))) std::exit(1);
}

}  // namespace

void ChangeExitStatus() {
  const auto process = static_cast<intptr_t>(getpid());
  if (on_exit(ExitWithOne, reinterpret_cast<void*>(process)) != 0) throw std::bad_alloc();
}

}  // namespace byteps::python
