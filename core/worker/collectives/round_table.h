// round_table.h - the rounds of collectives that are not over on this rank, and how many of each id it has submitted.
//
//     PeerRound* round = table.Submit(id);                 // this rank's next of this id
//     PeerRound* round = table.FindOrMake(id, number);     // of a record; nullptr: it is over here
//     table.Erase(round);                                  // it is over
//     table.Skip(id);                                      // counted as submitted, and over
//     table.Advance(id, number);                           // so are all before this one that are not under way
//
// Threads: none; belongs to the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_COLLECTIVES_ROUND_TABLE_H_
#define BYTEPS_CORE_WORKER_COLLECTIVES_ROUND_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/worker/collectives/peer_round.h"

namespace byteps {

class RoundTable {
 public:
  PeerRound* Submit(uint64_t id);
  void Skip(uint64_t id);
  void Advance(uint64_t id, uint64_t number);
  bool empty() const { return rounds_.empty(); }
  // Rounds of this id that this rank has submitted.
  uint64_t submitted(uint64_t id) const;

  PeerRound* Find(uint64_t id, uint64_t number) const;
  PeerRound* FindOrMake(uint64_t id, uint64_t number);
  PeerRound* FindSerial(uint64_t serial) const;
  void Erase(const PeerRound* round);
  void Clear();

  // All, by id and number; those that this rank has submitted.
  std::vector<PeerRound*> All() const;
  std::vector<PeerRound*> Submitted() const;

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // id, number

  absl::flat_hash_map<uint64_t, uint64_t> submitted_;
  std::map<Key, std::unique_ptr<PeerRound>> rounds_;
  absl::flat_hash_map<uint64_t, PeerRound*> by_serial_;
  uint64_t last_serial_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_COLLECTIVES_ROUND_TABLE_H_
