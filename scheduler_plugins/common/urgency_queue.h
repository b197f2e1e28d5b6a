// urgency_queue.h - tasks that wait, the most urgent first, by peer.
//
//     UrgencyQueue queue(UrgencyQueue::kWindow);
//     queue.Add(now, task);
//     using Task = UrgencyQueue::Task;
//     const Task* best = queue.Best(now, budgets, count, [](const Task& task) { return true; });
//     if (best != nullptr) Task task = queue.Take(*best);
//     queue.Left(task.tensor);             // its bytes have left, or it has failed
//
// Urgency: the larger priority, then the tensor declared earlier, then the lower part, then who came first. Each peer
// offers its most urgent task and no other: a small task does not overtake a larger, more urgent one that waits for
// room, so that none can wait for ever. A task whose `earliest` lies ahead joins when that time has come.
//
// The window. Of one tensor no more than so many tasks are offered or on their way, the first of those that have not
// left. A peer that has less to do than the others (a server beside a worker has a small share) always has room; without
// the window its tasks, to the end of the tensor, would go before the first ones of a peer that everybody waits for. Then
// the links stand still for the slow ones at the end, and each worker is elsewhere in the tensor: nothing is complete.
// With it all workers keep to the order of the parts, in which the shares of the servers are mixed. Six suffice to keep a
// link busy (docs/experiments.md; with 12 and more it loses its effect). 0: no window.
//
// Old age. Urgency alone would let a stream of urgent tasks keep the others for ever. So one answer in kAgedShare goes
// to the task that has waited longest, if that is longer than kPatience: everything goes some day, and the urgent lose
// little by it, also on a link where everything waits that long.
//
// Costs: about 0.3 us per task at 100,000 tasks; the number of peers counts in each Best.
// Threads: one at a time. Errors: none.
#ifndef BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_QUEUE_H_
#define BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory_resource>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi/scheduler.h"

namespace byteps::scheduling {

class UrgencyQueue {
 public:
  static constexpr int64_t kPatience = 10'000'000'000;  // ns
  static constexpr uint32_t kAgedShare = 16;
  static constexpr uint32_t kWindow = 6;

  // What is told of a task.
  struct Task {
    uint64_t id;
    uint64_t bytes;
    uint64_t tensor;
    uint32_t peer;
  };

  explicit UrgencyQueue(uint32_t window) : window_(window) {}

  void Add(int64_t now, const bps_task& task) {
    const uint32_t index = NewSlot();
    slots_[index] = {{task.id, task.bytes, task.tensor, task.peer},
                     task.part,
                     task.priority,
                     task.order,
                     ++arrivals_,
                     now,
                     task.earliest};
    by_id_.emplace(task.id, index);
    bytes_ += task.bytes;
    if (task.earliest > now) {
      delayed_.emplace(std::pair(task.earliest, arrivals_), index);
    } else {
      Arrive(index);
    }
  }

  // The task to go: the most urgent of those that their peer can take and that `admits(task)`; nullptr if there is none.
  // Valid until the next call of any other function.
  template <typename Admits>
  const Task* Best(int64_t now, const bps_budget* budgets, size_t count, const Admits& admits) {
    Wake(now);
    const auto fits = [&](const bps_budget& budget, const Task& task) {
      return task.bytes <= budget.bytes && admits(task);
    };
    if (turn_ + 1 >= kAgedShare) {
      const Ticket* oldest = nullptr;
      for (size_t i = 0; i < count; ++i) {
        Lane* lane = budgets[i].tasks == 0 ? nullptr : Find(budgets[i].peer);
        const Ticket* ticket = lane == nullptr ? nullptr : Oldest(lane);
        if (ticket == nullptr || now - ticket->since < kPatience || !fits(budgets[i], slots_[ticket->index].task))
          continue;
        if (oldest == nullptr || ticket->number < oldest->number) oldest = ticket;
      }
      if (oldest != nullptr) return &slots_[oldest->index].task;
    }
    const Entry* best = nullptr;
    for (size_t i = 0; i < count; ++i) {
      Lane* lane = budgets[i].tasks == 0 ? nullptr : Find(budgets[i].peer);
      const Entry* head = lane == nullptr ? nullptr : Head(lane);
      if (head == nullptr || (best != nullptr && !LessUrgent(*best, *head))) continue;
      if (fits(budgets[i], slots_[head->index].task)) best = head;
    }
    return best == nullptr ? nullptr : &slots_[best->index].task;
  }

  // Takes the answer of Best out. Until Left is called it counts in its tensor's window.
  Task Take(const Task& best) {
    turn_ = (turn_ + 1) % kAgedShare;
    const Task task = best;
    const auto found = by_id_.find(task.id);
    const uint32_t index = found->second;
    by_id_.erase(found);
    Free(index);
    return task;
  }

  // A task that was taken is under way no more: the next of its tensor is let out.
  void Left(uint64_t tensor) {
    if (window_ == 0) return;
    const auto found = windows_.find(tensor);
    Window& window = found->second;
    while (!window.heap.empty() && Stale(window.heap.front())) Pop(&window.heap);
    if (!window.heap.empty()) {
      const uint32_t index = window.heap.front().index;
      Pop(&window.heap);
      Join(index);
    } else if (--window.out == 0) {
      windows_.erase(found);
    }
  }

  // Takes a task back that was not taken. False if it is not here.
  bool Remove(uint64_t id) {
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return false;
    const uint32_t index = found->second;
    const Slot& slot = slots_[index];
    const bool offered = slot.earliest == kJoined;
    const uint64_t tensor = slot.task.tensor;
    by_id_.erase(found);
    Free(index);
    if (offered) Left(tensor);
    return true;
  }

  size_t tasks() const { return by_id_.size(); }
  uint64_t bytes() const { return bytes_; }
  // Of those, for this peer, not delayed and not behind the window.
  size_t waiting(uint32_t peer) const {
    const auto lane = lanes_.find(peer);
    return lane == lanes_.end() ? 0 : lane->second.live;
  }
  // When a delayed task joins; INT64_MAX: there is none.
  int64_t NextJoin() const { return delayed_.empty() ? INT64_MAX : delayed_.begin()->first.first; }

 private:
  static constexpr size_t kSlack = 64;
  // Peers come and go; the lanes of so many are kept when they are empty.
  static constexpr size_t kMostLanes = 256;

  static constexpr int64_t kJoined = INT64_MIN;
  static constexpr int64_t kBehind = INT64_MIN + 1;

  struct Slot {
    Task task;
    uint32_t part;
    int64_t priority;
    uint64_t order;
    uint64_t number = 0;  // of its arrival; 0: free
    int64_t since;        // of its arrival
    int64_t earliest;     // kJoined: in its peer's lane; kBehind: behind its tensor's window
  };
  struct Entry {
    int64_t priority;
    uint64_t order;
    uint64_t number;
    uint32_t part;
    uint32_t index;
  };
  struct Ticket {
    int64_t since;
    uint64_t number;
    uint32_t index;
  };
  using Heap = std::pmr::vector<Entry>;  // by urgency; with stale entries
  struct Lane {
    explicit Lane(std::pmr::memory_resource* memory) : heap(memory), ages(memory) {}
    Heap heap;
    std::pmr::deque<Ticket> ages;  // by arrival; with stale ones
    size_t live = 0;
  };
  // Of one tensor.
  struct Window {
    explicit Window(std::pmr::memory_resource* memory) : heap(memory) {}
    uint32_t out = 0;  // in lanes, or taken and not left
    Heap heap;         // behind
  };

  static bool LessUrgent(const Entry& a, const Entry& b) {
    if (a.priority != b.priority) return a.priority < b.priority;
    if (a.order != b.order) return a.order > b.order;
    if (a.part != b.part) return a.part > b.part;
    return a.number > b.number;
  }

  template <typename Mark>
  bool Stale(const Mark& mark) const {
    return slots_[mark.index].number != mark.number;
  }

  Lane* Find(uint32_t peer) {
    const auto lane = lanes_.find(peer);
    return lane == lanes_.end() || lane->second.live == 0 ? nullptr : &lane->second;
  }

  uint32_t NewSlot() {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }

  void Free(uint32_t index) {
    Slot& slot = slots_[index];
    bytes_ -= slot.task.bytes;
    if (slot.earliest == kJoined) {
      Leave(slot);
    } else if (slot.earliest != kBehind) {
      delayed_.erase(std::pair(slot.earliest, slot.number));
    }
    slot.number = 0;
    free_.push_back(index);
  }

  void Arrive(uint32_t index) {
    if (window_ == 0) return Join(index);
    Slot& slot = slots_[index];
    Window& window = windows_.try_emplace(slot.task.tensor, &memory_).first->second;
    if (window.out == window_) {
      slot.earliest = kBehind;
      Push(&window.heap, EntryOf(index));
    } else {
      ++window.out;
      Join(index);
    }
  }

  Entry EntryOf(uint32_t index) const {
    const Slot& slot = slots_[index];
    return {slot.priority, slot.order, slot.number, slot.part, index};
  }

  void Join(uint32_t index) {
    Slot& slot = slots_[index];
    slot.earliest = kJoined;
    Lane& lane = lanes_.try_emplace(slot.task.peer, &memory_).first->second;
    Push(&lane.heap, EntryOf(index));
    lane.ages.push_back({slot.since, slot.number, index});
    ++lane.live;
  }

  void Wake(int64_t now) {
    while (!delayed_.empty() && delayed_.begin()->first.first <= now) {
      const uint32_t index = delayed_.begin()->second;
      delayed_.erase(delayed_.begin());
      // It comes now: behind those that are waiting, whenever it was enqueued.
      slots_[index].number = ++arrivals_;
      slots_[index].since = now;
      Arrive(index);
    }
  }

  // The task leaves its lane. Mostly it is the head; elsewhere it stays as a stale entry, which goes when it comes up or
  // when the stale outweigh the rest.
  void Leave(Slot& slot) {
    const auto found = lanes_.find(slot.task.peer);
    Lane& lane = found->second;
    if (--lane.live == 0) {
      lane.heap.clear();
      lane.ages.clear();
      if (lanes_.size() > kMostLanes) lanes_.erase(found);
      return;
    }
    if (lane.heap.front().number == slot.number) Pop(&lane.heap);
    slot.number = 0;
    if (lane.heap.size() > 2 * lane.live + kSlack) {
      std::erase_if(lane.heap, [&](const Entry& entry) { return Stale(entry); });
      // Sorted is a heap, too.
      std::sort(lane.heap.begin(), lane.heap.end(), [](const Entry& a, const Entry& b) { return LessUrgent(b, a); });
    }
    if (lane.ages.size() > 2 * lane.live + kSlack) {
      std::erase_if(lane.ages, [&](const Ticket& ticket) { return Stale(ticket); });
    }
  }

  // A heap of four children a node: half the levels, and the children of a node lie in two cache lines.
  static void Push(Heap* heap, const Entry& entry) {
    size_t at = heap->size();
    heap->push_back(entry);
    while (at > 0 && LessUrgent((*heap)[(at - 1) / 4], entry)) {
      (*heap)[at] = (*heap)[(at - 1) / 4];
      at = (at - 1) / 4;
    }
    (*heap)[at] = entry;
  }

  static void Pop(Heap* from) {
    Heap& heap = *from;
    const Entry last = heap.back();
    heap.pop_back();
    if (heap.empty()) return;
    size_t at = 0;
    while (true) {
      const size_t first = 4 * at + 1;
      if (first >= heap.size()) break;
      const size_t end = std::min(first + 4, heap.size());
      size_t best = first;
      for (size_t child = first + 1; child < end; ++child) {
        if (LessUrgent(heap[best], heap[child])) best = child;
      }
      if (!LessUrgent(last, heap[best])) break;
      heap[at] = heap[best];
      at = best;
    }
    heap[at] = last;
  }

  const Entry* Head(Lane* lane) {
    while (!lane->heap.empty() && Stale(lane->heap.front())) Pop(&lane->heap);
    return lane->heap.empty() ? nullptr : &lane->heap.front();
  }

  const Ticket* Oldest(Lane* lane) {
    while (!lane->ages.empty() && Stale(lane->ages.front())) lane->ages.pop_front();
    return lane->ages.empty() ? nullptr : &lane->ages.front();
  }

  const uint32_t window_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::pmr::unsynchronized_pool_resource memory_;
  std::pmr::unordered_map<uint64_t, uint32_t> by_id_{&memory_};
  std::pmr::unordered_map<uint64_t, Window> windows_{&memory_};  // by tensor
  std::unordered_map<uint32_t, Lane> lanes_;                     // by peer
  std::map<std::pair<int64_t, uint64_t>, uint32_t> delayed_;     // by time and number
  uint64_t arrivals_ = 0;
  uint64_t bytes_ = 0;
  uint32_t turn_ = 0;
};

// The window of an instance: of results, which go to all workers at once, everything is offered.
inline uint32_t WindowOf(const bps_scheduler_create_args& args) {
  return args.direction == BPS_DIRECTION_PUSH ? UrgencyQueue::kWindow : 0;
}

}  // namespace byteps::scheduling

#endif  // BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_QUEUE_H_
