// role_process.h - a process of the small job that bps_info --check starts.
//
//     RoleProcess server("the server", {path}, environment);
//     if (server.Ended()) std::cerr << server.name() << " " << server.Ending() << ": " << server.LastLine();
//
// What it writes is kept in memory, both streams together. It dies with its owner: killed when the object goes, and by
// the kernel when this process does.
//
// Threads: one at a time; the kernel ends the process when the thread that made it ends.
#ifndef BYTEPS_TOOLS_INFO_ROLE_PROCESS_H_
#define BYTEPS_TOOLS_INFO_ROLE_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace byteps {

class RoleProcess {
 public:
  // `inherited`: a descriptor that it gets, -1: none. What cannot be started ends with code 127.
  RoleProcess(std::string name, const std::vector<std::string>& command,
              const std::map<std::string, std::string>& environment, int inherited = -1);
  RoleProcess(const RoleProcess&) = delete;
  RoleProcess& operator=(const RoleProcess&) = delete;
  ~RoleProcess();

  const std::string& name() const { return name_; }
  // Looks, without blocking.
  bool Ended();
  // Of one that has ended.
  bool Succeeded() const { return code_ == 0; }
  // "has ended with code 3", "was killed by signal 9".
  std::string Ending() const;
  std::string Output() const;
  // Its last line that is not empty; "" if there is none.
  std::string LastLine() const;

 private:
  const std::string name_;
  UniqueFd output_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = 127;  // negative: minus the signal
};

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_ROLE_PROCESS_H_
