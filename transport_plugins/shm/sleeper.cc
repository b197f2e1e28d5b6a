#include "transport_plugins/shm/sleeper.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace byteps::shm {

bool Sleeper::Open(std::string* reason) {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  bell_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  // Edges: neither is ever read.
  if (epoll_ && bell_ && timer_ && Watch(bell_.get(), kBell, 0, EPOLLIN | EPOLLET) &&
      Watch(timer_.get(), kTimer, 0, EPOLLIN | EPOLLET)) {
    return true;
  }
  *reason =
      std::string("no descriptors to sleep on: ") + std::strerror(errno) + (errno == EMFILE ? " (ulimit -n)" : "");
  return false;
}

bool Sleeper::Watch(int fd, Source source, uint32_t number, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = uint64_t{source} << 32 | number;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Sleeper::Forget(int fd) {
  if (fd >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Sleeper::Until(Clock::time_point time) {
  if (time >= set_) return;
  const auto wait = std::max<Clock::duration>(time - Clock::now(), std::chrono::microseconds(1));
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
  itimerspec spec{};
  spec.it_value.tv_sec = nanoseconds / 1'000'000'000;
  spec.it_value.tv_nsec = nanoseconds % 1'000'000'000;
  if (::timerfd_settime(timer_.get(), 0, &spec, nullptr) == 0) set_ = time;
}

size_t Sleeper::Take(Event* events) {
  epoll_event found[kBatch];
  const int count = ::epoll_wait(epoll_.get(), found, kBatch, 0);
  for (int i = 0; i < count; ++i) {
    const auto source = static_cast<Source>(found[i].data.u64 >> 32);
    events[i] = {source, static_cast<uint32_t>(found[i].data.u64), found[i].events};
    if (source == kTimer) set_ = Clock::time_point::max();
  }
  return count < 0 ? 0 : static_cast<size_t>(count);
}

}  // namespace byteps::shm
