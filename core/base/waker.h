// waker.h - a descriptor that poll(2) reports readable after Signal, from any thread.
//
//     Waker waker;
//     pollfd entry = {waker.fd(), POLLIN, 0};
//     waker.Signal();   // any thread, also inside a callback
//     waker.Clear();    // the thread that was woken
#ifndef BYTEPS_CORE_BASE_WAKER_H_
#define BYTEPS_CORE_BASE_WAKER_H_

namespace byteps {

class Waker {
 public:
  // Throws std::system_error if the process has no descriptor left.
  Waker();
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  int fd() const { return fd_; }
  void Signal() const;
  void Clear() const;

 private:
  const int fd_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_WAKER_H_
