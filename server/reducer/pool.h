// pool.h - the registered memory of one lane: bounded, in size classes, with its use shown.
//
//     Pool pool(&transport, budget_bytes, slot_bytes);
//     Block block = pool.Take(bytes);              // empty if the budget is used up
//     Write(block.local(), ...);                   // gives itself back when it goes out of scope
//     Block last = pool.TakeReserve();             // one block of the largest class, kept apart for hard times
//     absl::StatusOr<RegisteredMemory> window = pool.MakeWindow(bytes);   // landing slots of one peer
//
// Memory is mapped and registered in chunks of four slots, a chunk is cut into blocks of one class (a chunk, half a
// chunk, a quarter = a slot, ... down to 1 KiB), and an empty chunk may change its class. So memory moves between
// classes, and what Take refuses is at most what lies in half-filled chunks. A window is shown to its peer, so it
// shares no region with anything else; chunks are never shown.
//
// Threads:   none; belongs to the thread that drives the transport.
// Ownership: blocks and windows must be given back before the pool goes, and the pool before the transport.
// Units:     bytes.
#ifndef BYTEPS_SERVER_REDUCER_POOL_H_
#define BYTEPS_SERVER_REDUCER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/transport.h"

namespace byteps {

class Pool;

// Registered memory that belongs to its holder.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept;
  ~Block() { Reset(); }

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bps_local local() const { return {region_, data_}; }
  // Gives it back.
  void Reset();

 private:
  friend class Pool;
  Pool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bps_region* region_ = nullptr;
  uint32_t chunk_ = 0;
  bool reserve_ = false;
};

// A range of memory with a registration of its own; both end with it.
class RegisteredMemory {
 public:
  static absl::StatusOr<RegisteredMemory> Make(Transport* transport, size_t size);
  RegisteredMemory() = default;
  RegisteredMemory(RegisteredMemory&& other) noexcept { *this = std::move(other); }
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  ~RegisteredMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bps_region* region() const { return region_; }
  // Of data() in the region.
  size_t offset() const { return offset_; }

 private:
  Transport* transport_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t offset_ = 0;
  bool mapped_ = false;  // by us; else it is the transport's
  bps_region* region_ = nullptr;
};

struct PoolStats {
  uint64_t budget = 0;
  uint64_t windows = 0;  // set aside for landing slots
  uint64_t chunks = 0;   // mapped for blocks
  uint64_t blocks = 0;   // in use, in whole blocks
  uint64_t peak = 0;     // most of windows + blocks at any time
  uint64_t refused = 0;  // Take without success
};

class Pool {
 public:
  static constexpr size_t kSmallestBlock = 1024;

  // The least a budget can be, landing slots not counted.
  static uint64_t Least(uint64_t slot_bytes);

  // Maps the reserve; ok() tells whether that went well.
  Pool(Transport* transport, uint64_t budget, uint64_t slot_bytes);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // At least `bytes`, aligned to 64; empty if the budget is used up or it is more than largest().
  Block Take(size_t bytes);
  size_t largest() const { return chunk_bytes_; }
  // The one block that Take does not give; empty while a member has it.
  Block TakeReserve();
  const absl::Status& ok() const { return ok_; }
  // Is more than half of what blocks can have in use?
  bool short_of_memory() const;

  // Sets memory aside for windows. False if the budget does not allow it; empty chunks make room.
  bool ReserveWindows(uint64_t bytes);
  void GiveWindows(uint64_t bytes) { stats_.windows -= bytes; }
  // A window out of what was set aside.
  absl::StatusOr<RegisteredMemory> MakeWindow(size_t bytes) { return RegisteredMemory::Make(transport_, bytes); }

  const PoolStats& stats() const { return stats_; }

 private:
  friend class Block;

  static constexpr uint32_t kNoClass = UINT32_MAX;
  struct Chunk {
    RegisteredMemory memory;
    uint32_t size_class = kNoClass;
    bool listed = false;         // in partial_ of its class
    std::vector<uint32_t> free;  // numbers of its free blocks
  };

  void Give(const Block& block);
  Chunk* ChunkWithRoom(uint32_t size_class);
  // The number of a chunk of which nothing is in use, taken off all lists; chunks_.size() if there is none.
  uint32_t EmptyChunk();
  void Cut(Chunk* chunk, uint32_t size_class);
  size_t BlockBytes(uint32_t size_class) const { return chunk_bytes_ >> size_class; }
  size_t BlocksOf(uint32_t size_class) const { return size_t{1} << size_class; }

  Transport* const transport_;
  const size_t chunk_bytes_;
  uint32_t classes_ = 0;
  absl::Status ok_;
  RegisteredMemory reserve_;
  bool reserve_taken_ = false;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // null: unmapped, the number is free
  std::vector<std::vector<uint32_t>> partial_;  // by class: chunks that may have free blocks
  PoolStats stats_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_POOL_H_
