// submission_queue.h - hands work from any thread to the one that drives the engine.
//
//     queue.Push(std::move(item));                    // any thread
//     queue.TakeAll(&items);                          // one thread at a time, into an empty vector, oldest first
//     for (T& item : items) ...
//     items.clear();                                  // its memory goes back and forth: a steady stream allocates none
//
// Memory ordering: what was written before Push is visible after TakeAll. empty() and the end of Push are sequentially
// consistent, so that "push, then look whether the driver sleeps" and the driver's "say that I sleep, then look whether
// the queue is empty" cannot both miss each other.
#ifndef BYTEPS_CORE_BASE_SUBMISSION_QUEUE_H_
#define BYTEPS_CORE_BASE_SUBMISSION_QUEUE_H_

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace byteps {

template <typename T>
class SubmissionQueue {
 public:
  SubmissionQueue() = default;
  SubmissionQueue(const SubmissionQueue&) = delete;
  SubmissionQueue& operator=(const SubmissionQueue&) = delete;

  void Push(T item) {
    std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(std::move(item));
    empty_.store(false, std::memory_order_seq_cst);
  }

  // Without the lock: the thread that drives asks all the time.
  bool empty() const { return empty_.load(std::memory_order_seq_cst); }

  void TakeAll(std::vector<T>* into) {
    if (empty()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    items_.swap(*into);
    empty_.store(true, std::memory_order_seq_cst);
  }

 private:
  std::mutex mutex_;
  std::vector<T> items_;
  std::atomic<bool> empty_{true};
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_SUBMISSION_QUEUE_H_
