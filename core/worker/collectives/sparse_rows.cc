#include "core/worker/collectives/sparse_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "abi/byteps.h"
#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"

namespace byteps {
namespace {

// Rows of all parts are brought together in blocks that fit into the second-level cache.
constexpr uint64_t kBlock = uint64_t{32} << 10;

// The numbers that any part has, each once, in their order.
std::vector<int64_t> Union(std::span<const SparsePart> parts) {
  std::vector<int64_t> all;
  for (const SparsePart& part : parts) all.insert(all.end(), part.indices(), part.indices() + part.count);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

absl::StatusOr<SparseRows> SparseRows::Pack(uint32_t dtype, uint64_t row_bytes, int64_t most, const int64_t* indices,
                                            const void* values, uint64_t count) {
  if (count != 0 && indices == nullptr) return absl::InvalidArgumentError("indices is NULL");
  if (count != 0 && row_bytes != 0 && values == nullptr) return absl::InvalidArgumentError("values is NULL");
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t i = 0; i < count; ++i) {
    if (indices[i] >= 0 && indices[i] < most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("index ", indices[i], " (number ", i, " of ", count, ") is not a row of its ", most, " rows"));
  }
  std::stable_sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return indices[a] < indices[b]; });
  SparseRows packed;
  for (uint64_t i = 0; i < count; ++i) {
    if (i == 0 || indices[order[i]] != indices[order[i - 1]]) ++packed.count;
  }
  packed.memory = AlignedMemory(SparseBytes(packed.count, row_bytes));
  auto* numbers = reinterpret_cast<int64_t*>(packed.memory.data());
  std::byte* rows = packed.memory.data() + SparseValuesAt(packed.count);
  std::vector<const void*> same;
  for (uint64_t i = 0; i < count; rows += row_bytes) {
    const int64_t index = indices[order[i]];
    same.clear();
    for (; i < count && indices[order[i]] == index; ++i) {
      same.push_back(static_cast<const std::byte*>(values) + order[i] * row_bytes);
    }
    *numbers++ = index;
    if (row_bytes == 0) continue;
    if (same.size() == 1) {
      std::memcpy(rows, same[0], row_bytes);
    } else {
      Reduce({dtype, BPS_SUM}, same, {}, rows, row_bytes / DtypeSize(dtype));
    }
  }
  return packed;
}

void Spread(const SparsePart& part, uint64_t row_bytes, uint64_t most, std::byte* to) {
  if (row_bytes == 0) return;
  const std::byte* values = part.values();
  for (uint64_t i = 0; i < part.count; ++i, values += row_bytes) {
    const int64_t index = part.indices()[i];
    if (index < 0 || static_cast<uint64_t>(index) >= most) continue;
    std::memcpy(to + static_cast<uint64_t>(index) * row_bytes, values, row_bytes);
  }
}

SparseRows Merge(const Reduction& reduction, std::span<const uint32_t> groups, std::span<const SparsePart> parts,
                 uint64_t row_bytes) {
  const std::vector<int64_t> numbers = Union(parts);
  SparseRows merged;
  merged.count = numbers.size();
  merged.memory = AlignedMemory(SparseBytes(merged.count, row_bytes));
  if (numbers.empty()) return merged;
  std::memcpy(merged.memory.data(), numbers.data(), numbers.size() * sizeof(int64_t));
  if (row_bytes == 0) return merged;
  std::byte* to = merged.memory.data() + SparseValuesAt(merged.count);

  const uint64_t block = std::max<uint64_t>(1, kBlock / row_bytes);
  std::vector<std::byte*> rows;
  std::vector<const void*> sources;
  const AlignedMemory gathered(parts.size() * ((block * row_bytes + 63) / 64 * 64));
  for (size_t i = 0; i < parts.size(); ++i) {
    rows.push_back(gathered.data() + i * ((block * row_bytes + 63) / 64 * 64));
    sources.push_back(rows.back());
  }
  std::vector<uint64_t> next(parts.size(), 0);
  for (uint64_t first = 0; first < merged.count; first += block) {
    const uint64_t count = std::min(block, merged.count - first);
    for (size_t i = 0; i < parts.size(); ++i) {
      std::memset(rows[i], 0, count * row_bytes);
      for (uint64_t row = 0; row < count && next[i] < parts[i].count; ++row) {
        if (parts[i].indices()[next[i]] != numbers[first + row]) continue;
        std::memcpy(rows[i] + row * row_bytes, parts[i].values() + next[i]++ * row_bytes, row_bytes);
      }
    }
    Reduce(reduction, sources, groups, to + first * row_bytes, count * row_bytes / DtypeSize(reduction.dtype));
  }
  return merged;
}

}  // namespace byteps
