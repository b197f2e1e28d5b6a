// sleeper.h - one descriptor for poll(2) that stands for several of libfabric's objects and an alarm.
//
//     Sleeper sleeper;
//     int code = sleeper.Add(&cq->fid);            // an object opened with FI_WAIT_FD
//     if (sleeper.Arm(fabric, wake)) poll(sleeper.fd()) ...
#ifndef BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_SLEEPER_H_
#define BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_SLEEPER_H_

#include <rdma/fabric.h>

#include <chrono>
#include <vector>

namespace byteps::fabric {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC
inline constexpr Clock::time_point kNever = Clock::time_point::max();

class Sleeper {
 public:
  Sleeper();
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // 0 or a libfabric code.
  int Add(fid* object);
  // Of a descriptor of our own: readable is what it waits for.
  int AddDescriptor(int fd);
  int fd() const { return epoll_; }
  // True: nothing waits to be fetched, and fd() becomes readable when something comes, at the latest at `wake`.
  bool Arm(fid_fabric* fabric, Clock::time_point wake);

 private:
  void SetAlarm(Clock::time_point wake);

  int epoll_, timer_;
  std::vector<fid*> objects_;
  Clock::time_point alarm_ = kNever;  // what the timer is set to
};

}  // namespace byteps::fabric

#endif  // BYTEPS_TRANSPORT_PLUGINS_LIBFABRIC_SLEEPER_H_
