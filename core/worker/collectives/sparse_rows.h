// sparse_rows.h - some rows of a large tensor, by their numbers: how they are packed, added up, and made a whole
// tensor.
//
//     absl::StatusOr<SparseRows> rows = SparseRows::Pack(dtype, row_bytes, most, indices, values, count);
//     rows->memory: sorted numbers, each once, then the rows; rows with the same number have been added up
//     Spread(packed, count, row_bytes, to);                  // into a whole tensor of zeros
//     SparseRows merged = Merge(reduction, groups, parts, row_bytes);
//
// The sums are those of whole tensors that are zero elsewhere, to the bit: rows of one rank with one number are added
// up in their order first; then, for each number that any rank has, the rows of all ranks are folded as a push_pull
// folds them, with zeros from those that lack it.
//
// Threads: plain functions.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_SPARSE_ROWS_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_SPARSE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "core/base/aligned_memory.h"
#include "core/reduce/reduce.h"

namespace byteps {

struct SparseRows {
  AlignedMemory memory;
  uint64_t count = 0;

  // The rows of one rank. INVALID_ARGUMENT: a number is not from 0 to most - 1, or NULL was given for some.
  static absl::StatusOr<SparseRows> Pack(uint32_t dtype, uint64_t row_bytes, int64_t most, const int64_t* indices,
                                         const void* values, uint64_t count);
};

// Where in packed memory the rows begin, and what it takes.
constexpr uint64_t SparseValuesAt(uint64_t count) { return (count * sizeof(int64_t) + 63) / 64 * 64; }
constexpr uint64_t SparseBytes(uint64_t count, uint64_t row_bytes) {
  return count == 0 ? 0 : SparseValuesAt(count) + count * row_bytes;
}

// Packed memory, as it came.
struct SparsePart {
  const std::byte* packed = nullptr;
  uint64_t count = 0;

  const int64_t* indices() const { return reinterpret_cast<const int64_t*>(packed); }
  const std::byte* values() const { return packed + SparseValuesAt(count); }
};

// `to`: zeros, of `most` rows. Numbers beyond them are left out.
void Spread(const SparsePart& part, uint64_t row_bytes, uint64_t most, std::byte* to);

// The reduction over all ranks' parts; `groups` as of Reduce.
SparseRows Merge(const Reduction& reduction, std::span<const uint32_t> groups, std::span<const SparsePart> parts,
                 uint64_t row_bytes);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_SPARSE_ROWS_H_
