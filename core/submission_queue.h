// submission_queue.h - hands work from any thread to the one that drives the engine, without a lock.
//
//     queue.Push(std::move(item));                        // any thread
//     for (T& item : queue.TakeAll()) ...                 // one thread at a time, oldest first
//
// Memory ordering: what was written before Push is visible after TakeAll (release on the head, acquire on its
// exchange). Push uses a sequentially consistent exchange, so that "push, then look whether the driver sleeps" and the
// driver's "say that I sleep, then look whether the queue is empty" cannot both miss each other.
#ifndef BYTEPS_CORE_SUBMISSION_QUEUE_H_
#define BYTEPS_CORE_SUBMISSION_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace byteps {

template <typename T>
class SubmissionQueue {
 public:
  SubmissionQueue() = default;
  SubmissionQueue(const SubmissionQueue&) = delete;
  SubmissionQueue& operator=(const SubmissionQueue&) = delete;
  ~SubmissionQueue() { TakeAll(); }

  void Push(T item) {
    auto node = std::make_unique<Node>(Node{std::move(item), nullptr});
    node->next = head_.load(std::memory_order_relaxed);
    Node* raw = node.release();
    while (!head_.compare_exchange_weak(raw->next, raw, std::memory_order_seq_cst, std::memory_order_relaxed)) {
    }
  }

  bool empty() const { return head_.load(std::memory_order_seq_cst) == nullptr; }

  std::vector<T> TakeAll() {
    std::vector<T> items;
    if (head_.load(std::memory_order_relaxed) == nullptr) return items;
    Node* node = head_.exchange(nullptr, std::memory_order_acquire);
    while (node != nullptr) {
      std::unique_ptr<Node> owned(node);
      node = owned->next;
      items.push_back(std::move(owned->item));
    }
    std::reverse(items.begin(), items.end());
    return items;
  }

 private:
  struct Node {
    T item;
    Node* next;
  };
  std::atomic<Node*> head_{nullptr};
};

}  // namespace byteps

#endif  // BYTEPS_CORE_SUBMISSION_QUEUE_H_
