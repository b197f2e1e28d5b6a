// host.h - the services of the library that loaded this plugin, and what its configuration says about this one.
//
//     if (host.ProcessMemory()) ...
//     BPS_SHM_LOG(host, INFO, "opened");
//
// Threads: any.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_HOST_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_HOST_H_

#include <sys/types.h>

#include "transport_plugins/common/host.h"

namespace byteps::shm {

class Host : public transports::Host {
 public:
  using transports::Host::Host;

  // BYTEPS_SHM_PROCESS_VM: may the memory of other processes be read directly?
  bool ProcessMemory() const;
  // BYTEPS_LAUNCHER_PID: the process whose descendants the workers and servers of this host are. 0: not known.
  pid_t LauncherPid() const;
};

#define BPS_SHM_LOG BPS_TRANSPORT_LOG

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_HOST_H_
