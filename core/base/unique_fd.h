// unique_fd.h - a file descriptor with an owner.
//
//     UniqueFd fd(::socket(...));
//     if (!fd) return errno;
//     ::bind(fd.get(), ...);            // closed when fd goes
#ifndef BYTEPS_CORE_BASE_UNIQUE_FD_H_
#define BYTEPS_CORE_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace byteps {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  void Reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_UNIQUE_FD_H_
