// runner.h - a thread that runs the collectives of a process, for members in others.
//
//     Runner runner(machine);
//
// A GPU takes part in a collective whatever its host does. The simulated one gets on in the calls of its program alone,
// and this program may sleep, since it asks for nothing, while another waits for it. What is not needed by the
// collectives stays where the schedule has left it.
//
// Threads: its own. Errors: none.
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_RUNNER_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_RUNNER_H_

#include <sys/types.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "device_plugins/fake/machine.h"

namespace byteps::fake {

class Runner {
 public:
  explicit Runner(std::shared_ptr<Machine> machine);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner();

 private:
  void Run();

  const std::shared_ptr<Machine> machine_;
  const pid_t owner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_RUNNER_H_
