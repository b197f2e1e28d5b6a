// urgency_heap.h - tasks in slots, the most urgent on top.
//
//     heap.Push({priority, order, number, part, slot});
//     const UrgencyHeap::Entry* top = heap.Top(stale);        // nullptr: it is empty
//     heap.Pop();
//     heap.NoteStale(stale);               // a task that is somewhere in it has gone
//
// Urgency: the larger priority, then the tensor declared earlier, then the lower part, then the order of arrival. It is
// not known where in a heap a task is: when one goes that is not on top, its entry stays until it comes up, or until
// such entries outweigh the rest. `stale(entry)` tells them.
//
// Threads: one at a time. Errors: none.
#ifndef BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_HEAP_H_
#define BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_HEAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace byteps::scheduling {

class UrgencyHeap {
 public:
  struct Entry {
    int64_t priority;
    uint64_t order;
    uint64_t number;  // of its arrival
    uint32_t part;
    uint32_t slot;

    bool operator<(const Entry& other) const {  // less urgent
      if (priority != other.priority) return priority < other.priority;
      if (order != other.order) return order > other.order;
      if (part != other.part) return part > other.part;
      return number > other.number;
    }
  };

  void Push(const Entry& entry) {
    size_t at = entries_.size();
    entries_.push_back(entry);
    while (at > 0 && entries_[(at - 1) / 4] < entry) {
      entries_[at] = entries_[(at - 1) / 4];
      at = (at - 1) / 4;
    }
    entries_[at] = entry;
  }

  // Good until anything else is called.
  template <typename Stale>
  const Entry* Top(const Stale& stale) {
    while (stale_ > 0 && stale(entries_.front())) {
      Pop();
      --stale_;
    }
    return entries_.empty() ? nullptr : &entries_.front();
  }

  // Takes off what is on top, which must not be stale.
  void Pop() {
    const Entry last = entries_.back();
    entries_.pop_back();
    if (entries_.empty()) return;
    // Four children a node: half the levels, and the children of a node lie in two cache lines.
    size_t at = 0;
    while (true) {
      const size_t first = 4 * at + 1;
      if (first >= entries_.size()) break;
      const size_t end = std::min(first + 4, entries_.size());
      size_t best = first;
      for (size_t child = first + 1; child < end; ++child) {
        if (entries_[best] < entries_[child]) best = child;
      }
      if (!(last < entries_[best])) break;
      entries_[at] = entries_[best];
      at = best;
    }
    entries_[at] = last;
  }

  template <typename Stale>
  void NoteStale(const Stale& stale) {
    ++stale_;
    if (2 * stale_ <= entries_.size() + kSlack) return;
    std::erase_if(entries_, stale);
    // Sorted is a heap, too.
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return b < a; });
    stale_ = 0;
  }

  void Clear() {
    entries_.clear();
    stale_ = 0;
  }

 private:
  static constexpr size_t kSlack = 64;

  std::vector<Entry> entries_;
  size_t stale_ = 0;  // of them
};

}  // namespace byteps::scheduling

#endif  // BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_HEAP_H_
