#include "server/reducer/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlign = 64;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Four slots: two levels of a 16-bit float's partition, folded in 32 bits, are the most that one round needs.
size_t ChunkBytes(uint64_t slot_bytes) { return 4 * RoundUp(std::max<uint64_t>(slot_bytes, 1), kPage); }

}  // namespace

// ---- RegisteredMemory ----

absl::StatusOr<RegisteredMemory> RegisteredMemory::Make(Transport* transport, size_t size) {
  RegisteredMemory memory;
  memory.transport_ = transport;
  memory.size_ = RoundUp(size, kPage);
  void* base = nullptr;
  if (absl::Status status = transport->Allocate(memory.size_ + kAlign, &memory.region_, &base); status.ok()) {
    // The contract says nothing about alignment.
    memory.offset_ = (kAlign - reinterpret_cast<uintptr_t>(base) % kAlign) % kAlign;
    memory.data_ = static_cast<std::byte*>(base) + memory.offset_;
    return memory;
  } else if (!absl::IsUnimplemented(status)) {
    return status;
  }
  base = mmap(nullptr, memory.size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory: mapping ", memory.size_, " bytes failed: ", std::strerror(errno)));
  }
  // Fewer faults at first, fewer pages to look up later. A kernel without huge pages says no, which is fine.
  madvise(base, memory.size_, MADV_HUGEPAGE);
  memory.data_ = static_cast<std::byte*>(base);
  memory.mapped_ = true;
  if (absl::Status status = transport->Reg(base, memory.size_, &memory.region_); !status.ok()) return status;
  return memory;
}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(transport_, other.transport_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(offset_, other.offset_);
  std::swap(mapped_, other.mapped_);
  std::swap(region_, other.region_);
  return *this;
}

RegisteredMemory::~RegisteredMemory() {
  if (region_ != nullptr) transport_->Unreg(region_);
  if (mapped_) munmap(data_, size_);
}

// ---- Block ----

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  region_ = std::exchange(other.region_, nullptr);
  chunk_ = other.chunk_;
  reserve_ = other.reserve_;
  return *this;
}

void Block::Reset() {
  if (pool_ == nullptr) return;
  pool_->Give(*this);
  pool_ = nullptr;
  data_ = nullptr;
  size_ = 0;
  region_ = nullptr;
}

// ---- Pool ----

Pool::Pool(Transport* transport, uint64_t budget, uint64_t slot_bytes)
    : transport_(transport), chunk_bytes_(ChunkBytes(slot_bytes)) {
  stats_.budget = budget;
  while (BlockBytes(classes_) >= kSmallestBlock && BlockBytes(classes_) % 64 == 0) ++classes_;
  partial_.resize(classes_);
  if (budget < Least(slot_bytes)) {
    ok_ = absl::ResourceExhaustedError(absl::StrCat(
        "with landing slots of ", slot_bytes, " bytes (BYTEPS_SLOT_BYTES) a lane needs ", Least(slot_bytes),
        " bytes beside them and has ", budget, ": lower BYTEPS_SLOT_BYTES or raise BYTEPS_SERVER_MEMORY"));
    return;
  }
  absl::StatusOr<RegisteredMemory> reserve = RegisteredMemory::Make(transport, chunk_bytes_);
  ok_ = reserve.status();
  if (reserve.ok()) reserve_ = *std::move(reserve);
  stats_.chunks = chunk_bytes_;
}

uint64_t Pool::Least(uint64_t slot_bytes) { return ChunkBytes(slot_bytes); }

Block Pool::TakeReserve() {
  Block block;
  if (reserve_taken_ || reserve_.data() == nullptr) return block;
  reserve_taken_ = true;
  block.pool_ = this;
  block.data_ = reserve_.data();
  block.size_ = chunk_bytes_;
  block.region_ = reserve_.region();
  block.reserve_ = true;
  stats_.blocks += chunk_bytes_;
  stats_.peak = std::max(stats_.peak, stats_.windows + stats_.blocks);
  return block;
}

bool Pool::short_of_memory() const { return stats_.blocks * 2 + stats_.windows > stats_.budget; }

bool Pool::ReserveWindows(uint64_t bytes) {
  while (stats_.windows + stats_.chunks + bytes > stats_.budget) {
    const uint32_t empty = EmptyChunk();
    if (empty == chunks_.size()) return false;
    chunks_[empty].reset();
    stats_.chunks -= chunk_bytes_;
  }
  stats_.windows += bytes;
  stats_.peak = std::max(stats_.peak, stats_.windows + stats_.blocks);
  return true;
}

uint32_t Pool::EmptyChunk() {
  for (uint32_t number = 0; number < chunks_.size(); ++number) {
    const Chunk* chunk = chunks_[number].get();
    if (chunk == nullptr || chunk->free.size() != BlocksOf(chunk->size_class)) continue;
    std::erase(partial_[chunk->size_class], number);
    return number;
  }
  return static_cast<uint32_t>(chunks_.size());
}

void Pool::Cut(Chunk* chunk, uint32_t size_class) {
  chunk->size_class = size_class;
  chunk->listed = true;
  chunk->free.resize(BlocksOf(size_class));
  // The lowest first: memory that was touched before is used before other memory is.
  for (size_t i = 0; i < chunk->free.size(); ++i) chunk->free[i] = static_cast<uint32_t>(chunk->free.size() - 1 - i);
}

Pool::Chunk* Pool::ChunkWithRoom(uint32_t size_class) {
  std::vector<uint32_t>& partial = partial_[size_class];
  while (!partial.empty()) {
    Chunk* chunk = chunks_[partial.back()].get();
    // Entries of chunks that are full, or have changed their class, are dropped when they are met.
    if (chunk->size_class == size_class && !chunk->free.empty()) return chunk;
    if (chunk->size_class == size_class) chunk->listed = false;
    partial.pop_back();
  }
  uint32_t number = static_cast<uint32_t>(chunks_.size());
  if (stats_.windows + stats_.chunks + chunk_bytes_ <= stats_.budget) {
    absl::StatusOr<RegisteredMemory> memory = RegisteredMemory::Make(transport_, chunk_bytes_);
    // The system may refuse what our budget would allow: live with what there is.
    if (memory.ok()) {
      number = static_cast<uint32_t>(std::find(chunks_.begin(), chunks_.end(), nullptr) - chunks_.begin());
      if (number == chunks_.size()) chunks_.emplace_back();
      chunks_[number] = std::make_unique<Chunk>();
      chunks_[number]->memory = *std::move(memory);
      stats_.chunks += chunk_bytes_;
    }
  }
  if (number == chunks_.size()) number = EmptyChunk();
  if (number == chunks_.size()) return nullptr;
  Cut(chunks_[number].get(), size_class);
  partial.push_back(number);
  return chunks_[number].get();
}

Block Pool::Take(size_t bytes) {
  Block block;
  if (bytes > chunk_bytes_) {
    ++stats_.refused;
    return block;
  }
  uint32_t size_class = 0;
  while (size_class + 1 < classes_ && BlockBytes(size_class + 1) >= bytes) ++size_class;
  Chunk* chunk = ChunkWithRoom(size_class);
  if (chunk == nullptr) {
    ++stats_.refused;
    return block;
  }
  block.pool_ = this;
  block.size_ = BlockBytes(size_class);
  block.data_ = chunk->memory.data() + chunk->free.back() * block.size_;
  block.region_ = chunk->memory.region();
  block.chunk_ = partial_[size_class].back();
  chunk->free.pop_back();
  stats_.blocks += block.size_;
  stats_.peak = std::max(stats_.peak, stats_.windows + stats_.blocks);
  return block;
}

void Pool::Give(const Block& block) {
  if (block.reserve_) {
    reserve_taken_ = false;
    stats_.blocks -= block.size_;
    return;
  }
  Chunk* chunk = chunks_[block.chunk_].get();
  chunk->free.push_back(static_cast<uint32_t>(static_cast<size_t>(block.data_ - chunk->memory.data()) / block.size_));
  stats_.blocks -= block.size_;
  if (!chunk->listed) {
    chunk->listed = true;
    partial_[chunk->size_class].push_back(block.chunk_);
  }
}

}  // namespace byteps
