// slot_table.h - a slot for each of many things that have a 64-bit id.
//
//     SlotTable<Slot> slots;
//     uint32_t index = slots.Add(id);           // a new id; its slot is as the one before left it
//     slots[index].bytes = 42;
//     slots.Find(id) == index                   // kNone: it is not there
//     slots.Free(id);
//
// Ids are counted up by those that give them, so slots are kept by blocks of kBlock consecutive ids, and only blocks
// are looked up: things that came one after the other lie beside each other, and the table is small enough to stay in
// the cache. The price: a block lives as long as one of its ids does. Memory is used again, not given back: no
// allocation in a steady state.
//
// Threads: one at a time. Errors: none. A slot is where it is until it is freed.
#ifndef BYTEPS_SCHEDULER_PLUGINS_COMMON_SLOT_TABLE_H_
#define BYTEPS_SCHEDULER_PLUGINS_COMMON_SLOT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler_plugins/common/id_map.h"

namespace byteps::scheduling {

template <typename Slot>
class SlotTable {
 public:
  static constexpr uint32_t kNone = IdMap::kNone;
  static constexpr uint32_t kBlock = 16;

  uint32_t Add(uint64_t id) {
    uint32_t block = block_of_.Find(id / kBlock);
    if (block == kNone) block = NewBlock(id / kBlock);
    blocks_[block].used |= Bit(id);
    ++size_;
    return block * kBlock + static_cast<uint32_t>(id % kBlock);
  }

  uint32_t Find(uint64_t id) const {
    const uint32_t block = block_of_.Find(id / kBlock);
    if (block == kNone || (blocks_[block].used & Bit(id)) == 0) return kNone;
    return block * kBlock + static_cast<uint32_t>(id % kBlock);
  }

  // It must be there.
  void Free(uint64_t id) {
    const uint32_t index = block_of_.Find(id / kBlock);
    Block& block = blocks_[index];
    block.used &= ~Bit(id);
    --size_;
    if (block.used != 0) return;
    block_of_.Erase(id / kBlock);
    unused_.push_back(index);
  }

  Slot& operator[](uint32_t index) { return blocks_[index / kBlock].slots[index % kBlock]; }
  const Slot& operator[](uint32_t index) const { return blocks_[index / kBlock].slots[index % kBlock]; }
  size_t size() const { return size_; }

 private:
  struct Block {
    uint32_t used = 0;  // a bit for each
    std::unique_ptr<Slot[]> slots;
  };

  static uint32_t Bit(uint64_t id) { return uint32_t{1} << (id % kBlock); }

  uint32_t NewBlock(uint64_t number) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<uint32_t>(blocks_.size()));
      blocks_.emplace_back().slots = std::make_unique<Slot[]>(kBlock);
    }
    const uint32_t block = unused_.back();
    unused_.pop_back();
    block_of_.Insert(number, block);
    return block;
  }

  IdMap block_of_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> unused_;  // blocks
  size_t size_ = 0;
};

}  // namespace byteps::scheduling

#endif  // BYTEPS_SCHEDULER_PLUGINS_COMMON_SLOT_TABLE_H_
