// completion_threads.h - threads that tell XLA that an operation has ended.
//
//     TheCompletionThreads().Run([promise]() mutable { promise.SetAvailable(); });
//
// A caller that sets a promise of XLA's computes what waits for it, at once and on its own thread: the update of a
// parameter, all that is left of a small program, or a collective of several devices, which blocks until the other
// devices come to it, perhaps by another promise. The library's thread that moves the bytes of all other tensors must
// not do that.
//
// There are as many threads as are busy at once, at first at most `limit`. If no task has begun for a while, those
// threads may be waiting for each other's tasks: then there is one more, and again one, until tasks begin.
//
// The threads are never joined: XLA's own outlive main(), too.
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_JAX_NATIVE_COMPLETION_THREADS_H_
#define BYTEPS_FRAMEWORKS_JAX_NATIVE_COMPLETION_THREADS_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace byteps::jax {

class CompletionThreads {
 public:
  // `limit` is at least 1.
  explicit CompletionThreads(size_t limit);
  CompletionThreads(const CompletionThreads&) = delete;
  CompletionThreads& operator=(const CompletionThreads&) = delete;

  // Runs `task` on one of the threads. Tasks begin in the order of the calls. Throws std::system_error if the first
  // thread cannot be made.
  void Run(std::function<void()> task);

  // Waits until no task runs, and none waits to run; at most so long. Whether that is so.
  bool Settle(std::chrono::milliseconds patience);

  // How many threads there are now.
  size_t threads() const;

 private:
  // With mutex_ held.
  bool Waiting() const { return tasks_.size() > idle_; }
  void Add();

  void Work();
  void WatchForStandstill();

  const size_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;   // a task for an idle thread
  std::condition_variable waiting_;  // a task that has to wait, or one that did not have to any more
  std::condition_variable settled_;
  std::deque<std::function<void()>> tasks_;
  size_t running_ = 0;  // tasks
  size_t idle_ = 0;
  size_t threads_ = 0;
  uint64_t begun_ = 0;  // tasks
  bool watched_ = false;
};

// Those of this process.
CompletionThreads& TheCompletionThreads();

}  // namespace byteps::jax

#endif  // BYTEPS_FRAMEWORKS_JAX_NATIVE_COMPLETION_THREADS_H_
