// part_owners.h - which of the workers of a host reduces which bytes of a tensor, or carries which parts of it.
//
//     const Slice mine = SliceOf(bytes, own, members);                // on one host: a slice for each member
//     const PartRange mine = PartsOf(parts, name, own, members);      // to servers: runs of parts, one for each member
//     const size_t leader = LeaderOf(name, members);                  // of a small tensor: all of it
//
// Functions of what all members know, so none has to ask. Names begin with different members: the many tensors that
// have fewer parts than a host has workers are spread over all of them.
#ifndef BYTEPS_CORE_WORKER_TENSOR_PART_OWNERS_H_
#define BYTEPS_CORE_WORKER_TENSOR_PART_OWNERS_H_

#include <cstddef>
#include <cstdint>

namespace byteps {

// Bytes [first, last).
struct Slice {
  uint64_t first = 0;
  uint64_t last = 0;
};
// No two members write into one cache line.
Slice SliceOf(uint64_t bytes, size_t index, size_t members);

// Parts [first, last).
struct PartRange {
  uint32_t first = 0;
  uint32_t last = 0;
  uint32_t size() const { return last - first; }
};

// `name`: the tensor's name id.
size_t LeaderOf(uint64_t name, size_t members);
PartRange PartsOf(uint32_t parts, uint64_t name, size_t index, size_t members);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TENSOR_PART_OWNERS_H_
