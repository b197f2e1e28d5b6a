// loopback_check.h - a push_pull over each transport that can be used here, in a job of this host alone.
//
//     LoopbackCheck check({.library = library, .server = server, .program = "/proc/self/exe", ...});
//     absl::StatusOr<LoopbackTimes> times = check.Run({.transport = "tcp", .address = "127.0.0.1"});
//
// A coordinator, a server and two workers, each a process, as they would be in any job; or two workers that reduce
// among themselves (`alone`). The workers load the very libbyteps.so that trainers do, and check the sums. The settings
// of the environment hold, but for those that say which job this is.
//
// Threads: one at a time. Nothing is left running.
// Errors:  what the first process that failed said; DEADLINE_EXCEEDED: what each said last.
#ifndef BYTEPS_TOOLS_INFO_LOOPBACK_CHECK_H_
#define BYTEPS_TOOLS_INFO_LOOPBACK_CHECK_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/time.h"

namespace byteps {

struct LoopbackOptions {
  std::string library;  // libbyteps.so
  std::string server;   // byteps_server
  std::string program;  // with kLoopbackWorkerOption it is a worker (loopback_worker.h)
  std::map<std::string, std::string> environment;
  Time timeout = 30 * kSecond;  // until every process has arrived, and then of each operation
};

struct LoopbackRoute {
  std::string transport;  // "": none; the workers reduce among themselves
  std::string address = "127.0.0.1";
};

// Medians.
struct LoopbackTimes {
  double small_us = 0;  // of 4 bytes
  double large_us = 0;  // of kLoopbackBytes
};

class LoopbackCheck {
 public:
  explicit LoopbackCheck(LoopbackOptions options) : options_(std::move(options)) {}

  absl::StatusOr<LoopbackTimes> Run(const LoopbackRoute& route) const;

 private:
  const LoopbackOptions options_;
};

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_LOOPBACK_CHECK_H_
