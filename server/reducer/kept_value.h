// kept_value.h - the value of one part of an asynchronous tensor: what was pushed, added up as it came.
//
//     KeptValue& value = session->kept.FindOrMake(key, part, bytes, workers);
//     ++value.pushes[rank];                                     // its push was added to value.memory
//     if (!value.TooFarAhead(rank, staleness)) answer with value.memory
//
// It begins with zeros, and lives as long as its session. A result is the value at the time of the answer: whole within
// the part; other parts of the tensor may have had other pushes by then.
//
// Threads: those of its Reducer.
#ifndef BYTEPS_SERVER_REDUCER_KEPT_VALUE_H_
#define BYTEPS_SERVER_REDUCER_KEPT_VALUE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/aligned_memory.h"

namespace byteps {

class Round;

struct KeptValue {
  KeptValue(uint64_t size, size_t workers) : bytes(size), memory(size), pushes(workers, 0) {
    std::memset(memory.data(), 0, size);
  }

  uint64_t least() const { return *std::min_element(pushes.begin(), pushes.end()); }
  // `staleness`: 1 + how many pushes a worker may be ahead of the slowest; 0: no bound.
  bool TooFarAhead(uint32_t rank, uint64_t staleness) const {
    return staleness != 0 && pushes[rank] - least() > staleness - 1;
  }

  const uint64_t bytes;
  AlignedMemory memory;
  std::vector<uint64_t> pushes;  // by rank: how many were added
  std::vector<Round*> waiting;   // added, and not answered: too far ahead, or without memory for the answer
};

class KeptValues {
 public:
  // nullptr: it is there with another size, which no member of this release asks for.
  KeptValue* FindOrMake(uint64_t key, uint32_t part, uint64_t bytes, size_t workers) {
    std::unique_ptr<KeptValue>& value = values_[{key, part}];
    if (value == nullptr) value = std::make_unique<KeptValue>(bytes, workers);
    return value->bytes == bytes ? value.get() : nullptr;
  }
  size_t size() const { return values_.size(); }

 private:
  absl::flat_hash_map<std::pair<uint64_t, uint32_t>, std::unique_ptr<KeptValue>> values_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_KEPT_VALUE_H_
