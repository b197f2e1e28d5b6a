// urgency_queue.h - tasks that wait, the most urgent first, by peer.
//
//     UrgencyQueue queue(UrgencyQueue::kWindow);
//     queue.Add(now, task);
//     using Task = UrgencyQueue::Task;
//     Task* best = queue.Best(now, budgets, count, [](const Task& task) { return true; });
//     if (best != nullptr) queue.Take(best);
//     if (Task* taken = queue.Taken(id)) queue.End(taken);      // its bytes have left, or it has failed
//
// Urgency: the larger priority, then the tensor declared earlier, then the lower part, then who came first. Each peer
// offers its most urgent task and no other: a small task does not overtake a larger, more urgent one that waits for
// room, so that none can wait for ever. A task whose `earliest` lies ahead joins when that time has come.
//
// The window. Of one tensor no more than so many tasks are offered or on their way, the first of those that have not
// left. A peer that has less to do than the others (a server beside a worker has a small share) always has room;
// without the window its tasks, to the end of the tensor, would go before the first ones of a peer that all others
// wait for. Then the links stand still for the slow ones at the end, and each worker is elsewhere in the tensor:
// nothing is complete. With it all workers keep to the order of the parts, in which the shares of the servers are
// mixed. Six of 64 KiB suffice to keep a link busy (docs/performance/notes/2026-11-21-window-of-six.md; with 12 and
// more it loses its effect), and as many bytes of smaller ones (kWindowBytes): with fewer the link turns to other
// tensors between. 0: no window.
//
// Old age. Urgency alone would let a stream of urgent tasks keep the others for ever. So one answer in kAgedShare goes
// to the task that has waited longest, once it is old. Each worker gives such answers in the middle of something else,
// so that parts are complete later and links are not quite filled: within a step of a training nothing must grow old,
// however long its transfer takes. So age goes by rounds (laps.h): what waits is old when a tensor has come round twice
// meanwhile, which no step does. Where rounds are not told, and where nothing comes round, it goes by the clock.
//
// Costs: about 0.4 us per task at 100,000 tasks; the number of peers counts in each Best. A task stays in one slot, a
// cache line, from Add to End; heaps, lanes and tables name slots, and keep their memory: in a steady state nothing is
// allocated.
// Threads: one at a time. Errors: none.
#ifndef BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_QUEUE_H_
#define BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "abi/scheduler.h"
#include "scheduler_plugins/common/id_map.h"
#include "scheduler_plugins/common/laps.h"
#include "scheduler_plugins/common/slot_table.h"
#include "scheduler_plugins/common/urgency_heap.h"

namespace byteps::scheduling {

class UrgencyQueue {
 public:
  static constexpr uint16_t kOldLaps = 2;
  // By the clock, in ns: of a task with a round (less than half of what BYTEPS_OP_TIMEOUT is by default), and without.
  static constexpr int64_t kPatience = 250'000'000'000;
  static constexpr int64_t kPatienceWithoutRounds = 45'000'000'000;
  static constexpr uint32_t kAgedShare = 16;
  static constexpr uint32_t kWindow = 6;
  static constexpr uint64_t kWindowBytes = kWindow * (uint64_t{64} << 10);

  // What is told of a task. It is where it is until its End.
  struct Task {
    uint64_t id;
    uint64_t bytes;
    uint32_t peer;
    uint32_t note;  // the scheduler's own
  };

  explicit UrgencyQueue(uint32_t window) : window_(window) {}

  void Add(int64_t now, const bps_task& task) {
    const uint32_t index = slots_.Add(task.id);
    Slot& slot = slots_[index];
    slot.id = task.id;
    slot.bytes = task.bytes;
    slot.peer = task.peer;
    slot.number = ++arrivals_;
    slot.since = now;
    slot.round = task.round;
    slot.lap = laps_.count();
    bytes_ += task.bytes;
    const UrgencyHeap::Entry entry = {task.priority, task.order, slot.number, task.part, index};
    if (task.earliest > now) {
      slot.state = State::kDelayed;
      slot.since = task.earliest;
      delayed_.emplace(std::pair(task.earliest, slot.number), Delayed{entry, task.tensor});
    } else {
      Arrive(entry, task.tensor);
    }
  }

  // The task to go: the most urgent of those that their peer can take and that `admits(task)`; nullptr if there is
  // none.
  template <typename Admits>
  Task* Best(int64_t now, const bps_budget* budgets, size_t count, const Admits& admits) {
    Wake(now);
    const auto fits = [&](const bps_budget& budget, const Task& task) {
      return task.bytes <= budget.bytes && admits(task);
    };
    if (turn_ + 1 >= kAgedShare) {
      Slot* oldest = nullptr;
      for (size_t i = 0; i < count; ++i) {
        const Lane* lane = budgets[i].tasks == 0 ? nullptr : Find(budgets[i].peer);
        if (lane == nullptr) continue;
        Slot& slot = slots_[lane->oldest];
        if (!Old(now, slot) || !fits(budgets[i], slot)) continue;
        if (oldest == nullptr || slot.number < oldest->number) oldest = &slot;
      }
      if (oldest != nullptr) return oldest;
    }
    const UrgencyHeap::Entry* best = nullptr;
    for (size_t i = 0; i < count; ++i) {
      Lane* lane = budgets[i].tasks == 0 ? nullptr : Find(budgets[i].peer);
      const UrgencyHeap::Entry* head = lane == nullptr ? nullptr : lane->heap.Top(Stale{slots_});
      if (head == nullptr || (best != nullptr && !(*best < *head))) continue;
      if (fits(budgets[i], slots_[head->slot])) best = head;
    }
    return best == nullptr ? nullptr : &slots_[best->slot];
  }

  // Takes the answer of Best out. Until its End it counts in its tensor's window.
  void Take(Task* best) {
    turn_ = (turn_ + 1) % kAgedShare;
    Slot& slot = *static_cast<Slot*>(best);
    bytes_ -= slot.bytes;
    Leave(&slot);
    slot.state = State::kTaken;
    if (slot.round != 0 && slot.window != kNone) laps_.Went(windows_[slot.window].tensor, slot.round);
    ++taken_;
    taken_bytes_ += slot.bytes;
  }

  // The tensor of the answer of Best, or of a task that was taken; 0 without a window.
  uint64_t TensorOf(const Task* task) const {
    const uint32_t window = static_cast<const Slot*>(task)->window;
    return window == kNone ? 0 : windows_[window].tensor;
  }

  // Taken and not ended; nullptr if it is not.
  Task* Taken(uint64_t id) {
    const uint32_t index = slots_.Find(id);
    return index == kNone || slots_[index].state != State::kTaken ? nullptr : &slots_[index];
  }

  // A task that was taken is under way no more: the next of its tensor is let out.
  void End(Task* taken) {
    Slot* slot = static_cast<Slot*>(taken);
    --taken_;
    taken_bytes_ -= slot->bytes;
    Free(slot);
    MakeRoom(slot->window);
  }

  // Takes a task back that was not taken. False if it is not here.
  bool Remove(uint64_t id) {
    const uint32_t index = slots_.Find(id);
    if (index == kNone || slots_[index].state == State::kTaken) return false;
    Slot* slot = &slots_[index];
    const State state = slot->state;
    bytes_ -= slot->bytes;
    if (state == State::kDelayed) delayed_.erase(std::pair(slot->since, slot->number));
    if (state == State::kOffered) Leave(slot);
    Free(slot);
    if (state == State::kBehind) windows_[slot->window].behind.NoteStale(Stale{slots_});
    if (state == State::kOffered) MakeRoom(slot->window);
    return true;
  }

  // Not taken.
  size_t tasks() const { return slots_.size() - taken_; }
  uint64_t bytes() const { return bytes_; }
  // Taken and not ended.
  size_t taken() const { return taken_; }
  uint64_t taken_bytes() const { return taken_bytes_; }
  // Is there any for this peer, not delayed and not behind the window?
  bool waits(uint32_t peer) { return Find(peer) != nullptr; }
  // When a delayed task joins; INT64_MAX: there is none.
  int64_t NextJoin() const { return delayed_.empty() ? INT64_MAX : delayed_.begin()->first.first; }

 private:
  static constexpr uint32_t kNone = IdMap::kNone;
  // Peers come and go; the lanes of so many are kept when they are empty.
  static constexpr size_t kMostLanes = 256;

  enum class State : uint8_t {
    kDelayed,  // its time has not come
    kBehind,   // its tensor's window
    kOffered,  // in its peer's lane
    kTaken,
  };

  struct alignas(64) Slot : Task {
    uint64_t number;  // of its arrival; 0: its entries are stale
    int64_t since;    // of its arrival; delayed: until when
    uint32_t lane;
    uint32_t window;        // kNone: there are none
    uint32_t older, newer;  // in its lane, by arrival there
    uint32_t round;         // bps_task's
    uint16_t lap;           // the count of laps at its arrival
    State state;
  };
  static_assert(sizeof(Slot) == 64);
  // Of one peer.
  struct Lane {
    uint32_t peer = 0;
    uint32_t oldest = kNone, newest = kNone;
    size_t live = 0;
    UrgencyHeap heap;
  };
  // Of one tensor.
  struct Window {
    uint64_t tensor = 0;
    uint32_t out = 0;  // offered, or taken and not ended
    UrgencyHeap behind;
  };
  struct Delayed {
    UrgencyHeap::Entry entry;
    uint64_t tensor;
  };

  // Has the task of an entry gone, or gone elsewhere?
  struct Stale {
    const SlotTable<Slot>& slots;
    bool operator()(const UrgencyHeap::Entry& entry) const { return slots[entry.slot].number != entry.number; }
  };

  bool Old(int64_t now, const Slot& slot) const {
    if (slot.round == 0) return now - slot.since >= kPatienceWithoutRounds;
    return static_cast<uint16_t>(laps_.count() - slot.lap) >= kOldLaps || now - slot.since >= kPatience;
  }

  void Free(Slot* slot) {
    slot->number = 0;
    slots_.Free(slot->id);
  }

  Lane* Find(uint32_t peer) {
    const uint32_t lane = lane_of_.Find(peer);
    return lane == kNone || lanes_[lane].live == 0 ? nullptr : &lanes_[lane];
  }

  // The index of what `map` has of `id`; made, or used again, if it has nothing.
  template <typename Thing>
  static uint32_t Have(IdMap* map, uint64_t id, std::vector<Thing>* all, std::vector<uint32_t>* unused) {
    uint32_t index = map->Find(id);
    if (index != kNone) return index;
    if (unused->empty()) {
      index = static_cast<uint32_t>(all->size());
      all->emplace_back();
    } else {
      index = unused->back();
      unused->pop_back();
    }
    map->Insert(id, index);
    return index;
  }

  void Arrive(const UrgencyHeap::Entry& entry, uint64_t tensor) {
    Slot& slot = slots_[entry.slot];
    slot.window = kNone;
    if (window_ == 0) return Join(entry);
    slot.window = Have(&window_of_, tensor, &windows_, &unused_windows_);
    Window& window = windows_[slot.window];
    window.tensor = tensor;
    // Parts of one tensor are alike.
    if (window.out >= std::max<uint64_t>(window_, kWindowBytes / std::max<uint64_t>(1, slot.bytes))) {
      slot.state = State::kBehind;
      window.behind.Push(entry);
    } else {
      ++window.out;
      Join(entry);
    }
  }

  void Join(const UrgencyHeap::Entry& entry) {
    Slot& slot = slots_[entry.slot];
    slot.state = State::kOffered;
    slot.lane = Have(&lane_of_, slot.peer, &lanes_, &unused_lanes_);
    Lane& lane = lanes_[slot.lane];
    lane.peer = slot.peer;
    lane.heap.Push(entry);
    ++lane.live;
    slot.older = lane.newest;
    slot.newer = kNone;
    (slot.older == kNone ? lane.oldest : slots_[slot.older].newer) = entry.slot;
    lane.newest = entry.slot;
  }

  void Wake(int64_t now) {
    while (!delayed_.empty() && delayed_.begin()->first.first <= now) {
      Delayed due = delayed_.begin()->second;
      delayed_.erase(delayed_.begin());
      // It comes now: behind those that are waiting, whenever it was enqueued.
      Slot& slot = slots_[due.entry.slot];
      slot.number = due.entry.number = ++arrivals_;
      slot.since = now;
      slot.lap = laps_.count();
      Arrive(due.entry, due.tensor);
    }
  }

  // The task leaves its lane. Mostly it is on top.
  void Leave(Slot* slot) {
    Lane& lane = lanes_[slot->lane];
    (slot->older == kNone ? lane.oldest : slots_[slot->older].newer) = slot->newer;
    (slot->newer == kNone ? lane.newest : slots_[slot->newer].older) = slot->older;
    const bool top = lane.heap.Top(Stale{slots_})->number == slot->number;
    slot->number = 0;
    if (--lane.live == 0) {
      lane.heap.Clear();
      if (lane_of_.size() <= kMostLanes) return;
      lane_of_.Erase(lane.peer);
      unused_lanes_.push_back(slot->lane);
    } else if (top) {
      lane.heap.Pop();
    } else {
      lane.heap.NoteStale(Stale{slots_});
    }
  }

  // One that was let out of this window is gone.
  void MakeRoom(uint32_t index) {
    if (index == kNone) return;
    Window& window = windows_[index];
    if (const UrgencyHeap::Entry* next = window.behind.Top(Stale{slots_})) {
      const UrgencyHeap::Entry entry = *next;
      window.behind.Pop();
      if (const UrgencyHeap::Entry* after = window.behind.Top(Stale{slots_}))
        __builtin_prefetch(&slots_[after->slot], 1);
      Join(entry);
    } else if (--window.out == 0) {
      window_of_.Erase(window.tensor);
      unused_windows_.push_back(index);
    }
  }

  const uint32_t window_;
  SlotTable<Slot> slots_;
  IdMap lane_of_;  // by peer
  std::vector<Lane> lanes_;
  std::vector<uint32_t> unused_lanes_;
  IdMap window_of_;  // by tensor
  std::vector<Window> windows_;
  std::vector<uint32_t> unused_windows_;
  std::map<std::pair<int64_t, uint64_t>, Delayed> delayed_;  // by time and number
  Laps laps_;
  uint64_t arrivals_ = 0;
  uint64_t bytes_ = 0;
  size_t taken_ = 0;
  uint64_t taken_bytes_ = 0;
  uint32_t turn_ = 0;
};

// The window of an instance: of results, which go to all workers at once, everything is offered.
inline uint32_t WindowOf(const bps_scheduler_create_args& args) {
  return args.direction == BPS_DIRECTION_RESULT ? 0 : UrgencyQueue::kWindow;
}

}  // namespace byteps::scheduling

#endif  // BYTEPS_SCHEDULER_PLUGINS_COMMON_URGENCY_QUEUE_H_
