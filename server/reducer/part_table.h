// part_table.h - what a lane remembers of each partition between its rounds.
//
//     Part* part = parts.FindOrMake(name, number);
//     parts.SetBusy(part);     // it has a round now
//     parts.SetIdle(part);     // it has none
//
// Parts without a round are kept, so that stale messages are known as such and nothing is allocated when the next round
// begins; beyond `most_idle` of them the ones that were idle longest are forgotten, so that names do not add up.
// A forgotten part begins anew; the rounds of those that agree are not affected.
//
// Threads: none. Pointers to parts are valid while they are busy, and until the next FindOrMake or SetIdle.
#ifndef BYTEPS_SERVER_REDUCER_PART_TABLE_H_
#define BYTEPS_SERVER_REDUCER_PART_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace byteps {

class PartTable;
class Round;

// The last round that has failed: some worker may still come to it, and must hear why.
struct FailedRound {
  uint64_t number = 0;
  absl::Status why;
};

struct Part {
  uint64_t name = 0;  // name id: key >> 16
  uint32_t number = 0;
  Round* round = nullptr;  // the one that is neither over nor failed
  bool any_over = false;
  uint64_t over = 0;                    // the last round whose result was given out
  std::unique_ptr<FailedRound> failed;  // later than `over`
  PartTable* table = nullptr;           // that it is in

 private:
  friend class PartTable;
  bool idle_ = false;
  Part* older_ = nullptr;
  Part* newer_ = nullptr;
};

class PartTable {
 public:
  explicit PartTable(size_t most_idle) : most_idle_(most_idle) {}

  Part* Find(uint64_t name, uint32_t number) const;
  // A new part is busy.
  Part* FindOrMake(uint64_t name, uint32_t number);
  void SetBusy(Part* part);
  void SetIdle(Part* part);

  size_t size() const { return parts_.size(); }

 private:
  void Unlink(Part* part);

  const size_t most_idle_;
  size_t idle_ = 0;
  Part* oldest_ = nullptr;
  Part* newest_ = nullptr;
  absl::flat_hash_map<std::pair<uint64_t, uint32_t>, std::unique_ptr<Part>> parts_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_PART_TABLE_H_
