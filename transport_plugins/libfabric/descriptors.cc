#include "transport_plugins/libfabric/descriptors.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

namespace byteps::fabric {

size_t FreeDescriptors(size_t most) {
  std::vector<int> taken;
  taken.reserve(most);
  while (taken.size() < most) {
    const int fd = ::eventfd(0, EFD_CLOEXEC);
    if (fd < 0) break;
    taken.push_back(fd);
  }
  for (const int fd : taken) ::close(fd);
  return taken.size();
}

std::string DescriptorAdvice() {
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return "; this process may have no more descriptors (ulimit -n" +
         (known ? " is " + std::to_string(limit.rlim_cur) : std::string()) + ")";
}

}  // namespace byteps::fabric
