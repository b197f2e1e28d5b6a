#include "core/base/waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace byteps {
namespace {

int OpenEventFd() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

}  // namespace

Waker::Waker() : fd_(OpenEventFd()) {}
Waker::~Waker() { ::close(fd_); }

void Waker::Signal() const {
  // Fails only when it is readable anyway.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

void Waker::Clear() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t read = ::read(fd_, &count, sizeof count);
}

}  // namespace byteps
