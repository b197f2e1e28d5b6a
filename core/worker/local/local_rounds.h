// local_rounds.h - the rounds of the local stage that are not over, by name and number.
//
//     LocalRounds rounds;
//     LocalRound* round = rounds.FindOrMake(key, number, members);     // nullptr: it is over here
//     rounds.Forget(round);                                            // and all before it of its name
//
// Threads: none. Ownership: a round lives, where it is, until it is forgotten.
#ifndef BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROUNDS_H_
#define BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "core/worker/local/local_round.h"
#include "core/worker/tensor/operation.h"

namespace byteps {

class LocalRounds {
 public:
  LocalRound* FindOrMake(uint64_t key, uint64_t number, size_t members);
  // nullptr: the operation is in none.
  LocalRound* FindOf(const Operation& operation) const;
  // Has this worker taken part in this round, or is it over here?
  bool Submitted(uint64_t name_id, uint64_t number) const;
  // Rounds of this name up to `number` are over here, come what may.
  void Forget(uint64_t name_id, uint64_t number);

  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (auto& [id, name] : names_) {
      for (auto& [number, round] : name->rounds) visit(&round);
    }
  }

  // One line each, by name and number: for logs and tests.
  std::string Describe() const;

 private:
  struct Name {
    explicit Name(std::pmr::memory_resource* memory) : rounds(memory) {}
    uint64_t next = 0;  // rounds below are over here
    std::pmr::map<uint64_t, LocalRound> rounds;
  };
  // Of rounds and what was said in them: used again and again.
  std::pmr::unsynchronized_pool_resource memory_{{.max_blocks_per_chunk = 0, .largest_required_pool_block = 1 << 16}};
  absl::flat_hash_map<uint64_t, std::unique_ptr<Name>> names_;  // by name id
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_LOCAL_LOCAL_ROUNDS_H_
