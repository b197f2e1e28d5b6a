// ready_rounds.h - rounds that only wait for their turn to be folded: the most urgent first, and of those that are
// equally so the one that came first.
//
// Threads: those of its owner.
#ifndef BYTEPS_SERVER_REDUCER_READY_ROUNDS_H_
#define BYTEPS_SERVER_REDUCER_READY_ROUNDS_H_

#include <cstdint>
#include <vector>

#include "server/reducer/round.h"

namespace byteps {

class ReadyRounds {
 public:
  bool empty() const { return heap_.empty(); }
  void Add(Round* round);
  // The first of them; there must be one.
  Round* Take();
  // It is not folded any more; nothing, if it is not here.
  void Remove(Round* round);

 private:
  std::vector<Round*> heap_;
  uint64_t orders_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_READY_ROUNDS_H_
