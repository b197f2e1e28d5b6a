#include "transport_plugins/shm/host.h"

#include <cstdlib>
#include <string>

namespace byteps::shm {

bool Host::ProcessMemory() const {
  const std::string text = Config("BYTEPS_SHM_PROCESS_VM");
  return text != "0" && text != "false";
}

pid_t Host::LauncherPid() const { return static_cast<pid_t>(std::atol(Config("BYTEPS_LAUNCHER_PID").c_str())); }

}  // namespace byteps::shm
