// scheduled_tasks.h - what a scheduler plugin was given, and what has become of it.
//
//     ScheduledTasks tasks;
//     ScheduledTasks::Entry* entry = tasks.Add(task);      // nullptr: this id is there already
//     tasks.Find(id)->state = ScheduledTasks::State::kSent;
//     tasks.Erase(id);
//
// Ids are counted up where they are given, so tasks are kept by blocks of kBlock consecutive ids, and only blocks are
// looked up: a partition that is asked for among 100,000 costs one line of memory that is not in the cache, not three.
// The price: a block lives as long as one of its ids does. Blocks are used again: no allocation in a steady state.
//
// Threads: one at a time. Ownership: owns the entries; each is where it is until it is erased.
#ifndef BYTEPS_CORE_PLUGIN_SCHEDULED_TASKS_H_
#define BYTEPS_CORE_PLUGIN_SCHEDULED_TASKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "abi/scheduler.h"
#include "absl/container/flat_hash_map.h"

namespace byteps {

class ScheduledTasks {
 public:
  static constexpr uint64_t kBlock = 16;

  enum class State : uint8_t { kQueued, kInFlight, kSent };
  // What its answers are held against, and no more: of a task that is asked for among 100,000 nothing is in the cache.
  struct Entry {
    uint64_t bytes;
    int64_t earliest;
    uint32_t peer;
    State state;
  };

  // In state kQueued.
  Entry* Add(const bps_task& task) {
    Block& block = blocks_[task.id / kBlock];
    if (block.used & Bit(task.id)) return nullptr;
    if (block.used == 0) block.entries = NewEntries();
    block.used |= Bit(task.id);
    Entry* entry = &block.entries[task.id % kBlock];
    *entry = {task.bytes, task.earliest, task.peer, State::kQueued};
    return entry;
  }

  Entry* Find(uint64_t id) const {
    const auto found = blocks_.find(id / kBlock);
    if (found == blocks_.end() || (found->second.used & Bit(id)) == 0) return nullptr;
    return &found->second.entries[id % kBlock];
  }

  // It must be there.
  void Erase(uint64_t id) {
    const auto found = blocks_.find(id / kBlock);
    found->second.used &= ~Bit(id);
    if (found->second.used != 0) return;
    spare_.push_back(std::move(found->second.entries));
    blocks_.erase(found);
  }

  template <typename Each>
  void ForEach(const Each& each) const {
    for (const auto& [number, block] : blocks_) {
      for (uint64_t i = 0; i < kBlock; ++i) {
        if (block.used & Bit(i)) each(block.entries[i]);
      }
    }
  }

 private:
  using Entries = std::unique_ptr<Entry[]>;  // kBlock of them
  struct Block {
    uint32_t used = 0;  // a bit for each
    Entries entries;
  };

  static uint32_t Bit(uint64_t id) { return uint32_t{1} << (id % kBlock); }

  Entries NewEntries() {
    if (spare_.empty()) return std::make_unique<Entry[]>(kBlock);
    Entries entries = std::move(spare_.back());
    spare_.pop_back();
    return entries;
  }

  absl::flat_hash_map<uint64_t, Block> blocks_;  // by id over kBlock
  std::vector<Entries> spare_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_SCHEDULED_TASKS_H_
