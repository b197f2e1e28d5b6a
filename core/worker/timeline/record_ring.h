// record_ring.h - a bounded queue of timeline records, from any thread to one, without locks.
//
//     RecordRing ring(1 << 16);
//     if (!ring.Push(record)) ...           // any thread: full
//     while (ring.Pop(&record)) ...         // one thread at a time
//
// Each cell carries the turn in which it may be written or read, so a writer that is interrupted holds up the reader at
// its cell, and no other writer. (D. Vyukov's bounded queue.)
//
// Memory ordering: what was written before Push is visible after the Pop that takes it.
#ifndef BYTEPS_CORE_WORKER_TIMELINE_RECORD_RING_H_
#define BYTEPS_CORE_WORKER_TIMELINE_RECORD_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/worker/timeline/timeline_record.h"

namespace byteps {

class RecordRing {
 public:
  // `size`: a power of two.
  explicit RecordRing(size_t size) : mask_(size - 1), cells_(std::make_unique<Cell[]>(size)) {
    for (size_t i = 0; i < size; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  // False: there is no room.
  bool Push(const TimelineRecord& record) {
    uint64_t turn = head_.load(std::memory_order_relaxed);
    while (true) {
      Cell& cell = cells_[turn & mask_];
      const uint64_t free_for = cell.turn.load(std::memory_order_acquire);
      if (free_for == turn) {
        if (!head_.compare_exchange_weak(turn, turn + 1, std::memory_order_relaxed)) continue;
        cell.record = record;
        cell.turn.store(turn + 1, std::memory_order_release);
        return true;
      }
      if (free_for < turn) return false;
      turn = head_.load(std::memory_order_relaxed);
    }
  }

  // False: there is nothing to take yet.
  bool Pop(TimelineRecord* record) {
    Cell& cell = cells_[tail_ & mask_];
    if (cell.turn.load(std::memory_order_acquire) != tail_ + 1) return false;
    *record = cell.record;
    cell.turn.store(tail_ + mask_ + 1, std::memory_order_release);
    ++tail_;
    return true;
  }

 private:
  struct Cell {
    std::atomic<uint64_t> turn{0};
    TimelineRecord record;
  };

  const uint64_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) uint64_t tail_ = 0;  // the reader's
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TIMELINE_RECORD_RING_H_
