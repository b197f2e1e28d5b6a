#include "transport_plugins/libfabric/sleeper.h"

#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace byteps::fabric {

Sleeper::Sleeper()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ >= 0 && timer_ >= 0) epoll_ctl(epoll_, EPOLL_CTL_ADD, timer_, &event);
}

Sleeper::~Sleeper() {
  for (const int fd : {epoll_, timer_}) {
    if (fd >= 0) ::close(fd);
  }
}

int Sleeper::Add(fid* object) {
  if (epoll_ < 0 || timer_ < 0) return -FI_EMFILE;
  int fd = -1;
  if (const int code = fi_control(object, FI_GETWAIT, &fd); code != 0) return code;
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return -errno;
  objects_.push_back(object);
  return 0;
}

int Sleeper::AddDescriptor(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  return epoll_ >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

bool Sleeper::Arm(fid_fabric* fabric, Clock::time_point wake) {
  // An alarm that comes early does no harm: it is set anew only when it is over, or would come too late.
  if (wake < alarm_ || alarm_ <= Clock::now()) SetAlarm(wake);
  return fi_trywait(fabric, objects_.data(), static_cast<int>(objects_.size())) == 0;
}

void Sleeper::SetAlarm(Clock::time_point wake) {
  alarm_ = wake;
  itimerspec timer{};
  if (wake != kNever) {
    const int64_t time = std::chrono::nanoseconds(wake.time_since_epoch()).count();
    timer.it_value.tv_sec = time / 1'000'000'000;
    timer.it_value.tv_nsec = time % 1'000'000'000;
  }
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &timer, nullptr);
}

}  // namespace byteps::fabric
