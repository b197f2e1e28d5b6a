#include "core/base/open_files.h"

#include <sys/resource.h>

#include <cerrno>

namespace byteps {

std::string OpenFilesAdvice(int error) {
  if (error == ENFILE) return " (all processes of this host together: see /proc/sys/fs/file-max)";
  struct rlimit limit = {};
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  return " (this process may have " + std::to_string(limit.rlim_cur) + " open files: raise ulimit -n)";
}

}  // namespace byteps
