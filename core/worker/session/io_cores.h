// io_cores.h - the cores of the threads that a session starts: BYTEPS_IO_CPU_CORES.
//
//     absl::StatusOr<IoCores> cores = IoCores::Read("0-1:8,9", local_rank);
//     {
//       const IoCores::Scope scope(*cores);   // this thread runs there, and so do the threads that it starts
//       ...
//     }                                       // this thread runs where it did before
//
// A thread inherits the cores of the thread that starts it. So the session's own threads and those of its plugins get
// the same cores, and plugins need not know about them. The trainer's threads keep theirs.
//
// Threads: IoCores is a value; a Scope belongs to the thread that makes it.
#ifndef BYTEPS_CORE_WORKER_SESSION_IO_CORES_H_
#define BYTEPS_CORE_WORKER_SESSION_IO_CORES_H_

#include <sched.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace byteps {

class IoCores {
 public:
  // No cores of their own: a Scope changes nothing.
  IoCores() = default;

  // Logical cores such as "0-3,8", or a list for each local rank, separated by colons; "": no cores of their own. An
  // error: it is no list, has none for `local_rank`, or names cores that this process may not use.
  static absl::StatusOr<IoCores> Read(const std::string& text, int32_t local_rank);

  bool chosen() const { return chosen_; }
  const cpu_set_t& cores() const { return cores_; }

  class Scope {
   public:
    explicit Scope(const IoCores& cores);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // This thread runs there now: false if no cores were chosen, or the system refuses them.
    bool moved() const { return moved_; }

   private:
    bool moved_ = false;
    cpu_set_t before_;
  };

 private:
  bool chosen_ = false;
  cpu_set_t cores_ = {};
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SESSION_IO_CORES_H_
