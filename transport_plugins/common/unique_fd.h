// unique_fd.h - a file descriptor that closes itself.
//
//     UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
//     if (!fd) ...
#ifndef BYTEPS_TRANSPORT_PLUGINS_COMMON_UNIQUE_FD_H_
#define BYTEPS_TRANSPORT_PLUGINS_COMMON_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace byteps::transports {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) ::close(fd_);
  }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  void reset() { UniqueFd().swap(*this); }
  void swap(UniqueFd& other) noexcept { std::swap(fd_, other.fd_); }

 private:
  int fd_ = -1;
};

}  // namespace byteps::transports

#endif  // BYTEPS_TRANSPORT_PLUGINS_COMMON_UNIQUE_FD_H_
