// id_map.h - from 64-bit numbers to indices: a flat hash table.
//
//     IdMap map;
//     map.Insert(id, index);
//     uint32_t index = map.Find(id);        // kNone: it is not there
//     map.Erase(id);
//
// Four neighbours share a cache line: ids that are counted up, as those of tasks are, lie beside each other. What is
// erased leaves no mark (those behind it move up), so that a table in use for long is as fast as a new one. It grows,
// and keeps what it has: no allocation in a steady state.
//
// Threads: one at a time. Errors: none.
#ifndef BYTEPS_SCHEDULER_PLUGINS_COMMON_ID_MAP_H_
#define BYTEPS_SCHEDULER_PLUGINS_COMMON_ID_MAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace byteps::scheduling {

class IdMap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  size_t size() const { return size_; }

  uint32_t Find(uint64_t id) const { return cells_[Place(id)].index; }

  // `id` must be new, `index` not kNone.
  void Insert(uint64_t id, uint32_t index) {
    if (2 * (size_ + 1) > cells_.size()) Grow();
    cells_[Place(id)] = {id, index};
    ++size_;
  }

  // The index it had; kNone: it was not there.
  uint32_t Erase(uint64_t id) {
    size_t hole = Place(id);
    const uint32_t index = cells_[hole].index;
    if (index == kNone) return kNone;
    for (size_t at = Next(hole); cells_[at].index != kNone; at = Next(at)) {
      // Not before its home.
      if (Distance(Home(cells_[at].id), at) < Distance(hole, at)) continue;
      cells_[hole] = cells_[at];
      hole = at;
    }
    cells_[hole].index = kNone;
    --size_;
    return index;
  }

 private:
  static constexpr uint32_t kLeastBits = 6;

  struct Cell {
    uint64_t id = 0;
    uint32_t index = kNone;
  };

  size_t Next(size_t at) const { return (at + 1) & (cells_.size() - 1); }
  size_t Distance(size_t from, size_t to) const { return (to - from) & (cells_.size() - 1); }
  size_t Home(uint64_t id) const {
    const uint64_t line = ((id >> 2) * 0x9e3779b97f4a7c15) >> shift_;
    return static_cast<size_t>(line << 2 | (id & 3));
  }

  // The cell that has it, or the free one that would.
  size_t Place(uint64_t id) const {
    size_t at = Home(id);
    while (cells_[at].index != kNone && cells_[at].id != id) at = Next(at);
    return at;
  }

  void Grow() {
    const std::vector<Cell> before = std::exchange(cells_, std::vector<Cell>(2 * cells_.size()));
    --shift_;
    for (const Cell& cell : before) {
      if (cell.index != kNone) cells_[Place(cell.id)] = cell;
    }
  }

  uint32_t shift_ = 64 - (kLeastBits - 2);  // lines are numbered by the highest bits of a product
  std::vector<Cell> cells_ = std::vector<Cell>(size_t{1} << kLeastBits);  // at least half of them free
  size_t size_ = 0;
};

}  // namespace byteps::scheduling

#endif  // BYTEPS_SCHEDULER_PLUGINS_COMMON_ID_MAP_H_
