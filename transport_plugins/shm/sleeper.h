// sleeper.h - what a sleeping endpoint waits for, behind one descriptor: its bell, its sockets, the end of peers, a
// time.
//
//     Sleeper sleeper(&reason);
//     sleeper.Watch(fd, Sleeper::kSocket, peer);        // edge-triggered: read it empty
//     sleeper.Until(deadline);                          // before going to sleep
//     poll(2) on sleeper.fd() ...
//     for (Sleeper::Event event : sleeper.Take()) ...
//
// Setting the time is a system call, so it is left set when a later time would do: a wake-up for nothing, now and then.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SHM_SLEEPER_H_
#define BYTEPS_TRANSPORT_PLUGINS_SHM_SLEEPER_H_

#include <sys/epoll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport_plugins/shm/unique_fd.h"

namespace byteps::shm {

class Sleeper {
 public:
  using Clock = std::chrono::steady_clock;
  enum Source : uint32_t { kBell, kTimer, kListener, kNewcomer, kSocket, kProcess };
  struct Event {
    Source source;
    uint32_t number;  // that the watch was given
    uint32_t events;  // EPOLL*
  };

  bool Open(std::string* reason);
  int fd() const { return epoll_.get(); }
  int bell() const { return bell_.get(); }

  bool Watch(int fd, Source source, uint32_t number, uint32_t events = EPOLLIN | EPOLLRDHUP | EPOLLET);
  void Forget(int fd);
  void Until(Clock::time_point time);

  // Fetches up to kBatch; their number.
  static constexpr size_t kBatch = 32;
  size_t Take(Event* events);

 private:
  UniqueFd epoll_, bell_, timer_;
  Clock::time_point set_ = Clock::time_point::max();
};

}  // namespace byteps::shm

#endif  // BYTEPS_TRANSPORT_PLUGINS_SHM_SLEEPER_H_
