// ending.h - the end of an operation that its caller may have dropped before: what it has used is then let go of, by
// Python's main thread, which the library's thread asks to.
//
//     auto ending = std::make_shared<Ending>(sweeping);   // for the operation's callback and for its Request
//     ending->End();                                      // in the callback: the library uses no memory any more
//     ending->Orphan();                                   // the Request is dropped, and its session has the memory
//
// Where both have happened the session sweeps: here, or as soon as the main thread comes to its next line of Python. If
// that thread is inside another call for long, or Python has many such requests already, memory waits for the next
// operation of the session.
//
// Threads: End() by a thread of the library: it takes no lock of Python's but that of its list of calls. The rest as
// Python's own objects.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_ENDING_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_ENDING_H_

#include <atomic>
#include <memory>
#include <utility>

namespace byteps::python {

class Session;

// Asks for one sweep of a session at a time.
class Sweeping : public std::enable_shared_from_this<Sweeping> {
 public:
  explicit Sweeping(std::weak_ptr<Session> session) : session_(std::move(session)) {}

  // Has the main thread sweep. Any thread.
  void Ask() noexcept;

 private:
  static int Sweep(void* user);

  const std::weak_ptr<Session> session_;
  std::atomic<bool> asked_{false};
};

class Ending {
 public:
  explicit Ending(std::shared_ptr<Sweeping> sweeping) : sweeping_(std::move(sweeping)) {}

  bool ended() const { return ended_; }

  void End() noexcept {
    ended_ = true;
    if (orphaned_) sweeping_->Ask();
  }

  // The caller then looks whether it has ended(): whichever comes second sees the other.
  void Orphan() { orphaned_ = true; }

 private:
  const std::shared_ptr<Sweeping> sweeping_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> orphaned_{false};
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_ENDING_H_
