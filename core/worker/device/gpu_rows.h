// gpu_rows.h - how the parts of a tensor are shared among the GPUs of a host: in rows of one part for each.
//
//     const GpuRows rows(cut, name, members, roots);
//     for (uint32_t row = 0; row < rows.size(); ++row) rows.first(row), rows.last(row), rows.even(row) ...
//     rows.owner(part)                     // whose GPU copies it to the host, and takes its result
//
// A row of equal parts is one reduce-scatter and one all-gather. What is left over at the end, and tensors of few
// parts, begin with different members, so that small tensors use the links of all GPUs.
//
// Threads: immutable. The cut outlives it.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPU_ROWS_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPU_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/worker/tensor/cut.h"

namespace byteps {

class GpuRows {
 public:
  // `roots`: the members that may own parts; empty: all, each in its turn.
  GpuRows(const Cut& cut, uint64_t name, size_t members, const std::vector<uint32_t>& roots)
      : cut_(cut), name_(name), members_(static_cast<uint32_t>(members)), roots_(roots) {}

  uint32_t size() const { return (cut_.parts() + members_ - 1) / members_; }
  // Parts [first, last).
  uint32_t first(uint32_t row) const { return row * members_; }
  uint32_t last(uint32_t row) const { return std::min(cut_.parts(), first(row) + members_); }
  // Is it one part of equal size for each member, in their order?
  bool even(uint32_t row) const {
    return roots_.empty() && last(row) - first(row) == members_ && cut_.count(last(row) - 1) == cut_.count(first(row));
  }
  uint32_t owner(uint32_t part) const {
    if (!roots_.empty()) return roots_[(part + name_) % roots_.size()];
    const uint32_t row = part / members_, place = part - first(row);
    return even(row) ? place : static_cast<uint32_t>((place + name_) % members_);
  }
  uint32_t owned(uint32_t member) const {
    uint32_t count = 0;
    for (uint32_t part = 0; part < cut_.parts(); ++part) count += owner(part) == member ? 1 : 0;
    return count;
  }

 private:
  const Cut& cut_;
  const uint64_t name_;
  const uint32_t members_;
  const std::vector<uint32_t>& roots_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPU_ROWS_H_
