// stop_signal.h - SIGTERM and SIGINT as something to poll for.
//
//     StopSignal stop;                                  // in main, before the first thread
//     poll({stop.fd(), POLLIN}, ...);
//     if (const char* name = stop.Take()) ...           // "SIGTERM"
//
// While it lives, these signals are blocked in this thread and in those it starts, and wait in the descriptor.
#ifndef BYTEPS_SERVER_PROCESS_STOP_SIGNAL_H_
#define BYTEPS_SERVER_PROCESS_STOP_SIGNAL_H_

#include <signal.h>

#include "core/base/unique_fd.h"

namespace byteps {

class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // -1 if the system gave none: then signals end the process as usual.
  int fd() const { return fd_.get(); }
  // The name of a signal that has come, or nullptr; does not block.
  const char* Take();

 private:
  sigset_t before_;
  UniqueFd fd_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_PROCESS_STOP_SIGNAL_H_
