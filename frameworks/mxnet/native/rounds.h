// rounds.h - the operations of one name, in the order in which they were pushed on MXNet's engine.
//
// The engine runs no operation whose input has failed. On the other ranks the input may be there, so they come to that
// round, and this rank's later operations of the name would meet earlier ones of theirs. So a round that is left out is
// given up: when the engine drops its operation, or before a later one runs, whichever comes first.
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_MXNET_NATIVE_ROUNDS_H_
#define BYTEPS_FRAMEWORKS_MXNET_NATIVE_ROUNDS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "frameworks/common/giving_up.h"
#include "frameworks/common/operation.h"

namespace byteps::mxnet {

class Rounds {
 public:
  // Those of the name that `turn`, an NDArray, stands for. They live as long as the process, as it does.
  static Rounds& Of(const void* turn);

  // Gives a round up; `ended` is called once it has ended.
  using GiveUp = std::function<void(binding::Done ended)>;

  // An operation that is pushed now: its number. `give_up` is called at most once.
  uint64_t Push(GiveUp give_up);
  // The engine runs it: `start` is called, now or when the rounds before it that are given up have ended.
  void Run(uint64_t number, std::function<void()> start);
  // The engine has done with it, whether or not it ran.
  void Drop(uint64_t number);

 private:
  struct Waiting {
    uint64_t number;
    GiveUp give_up;
  };
  using Given = std::pair<GiveUp, binding::Done>;

  // Takes those up to `end`, which is not among them, to give them up without the lock.
  std::vector<Given> TakeBefore(uint64_t end);

  std::mutex mutex_;
  uint64_t next_ = 0;
  binding::GivingUp giving_up_;
  std::deque<Waiting> waiting_;
};

}  // namespace byteps::mxnet

#endif  // BYTEPS_FRAMEWORKS_MXNET_NATIVE_ROUNDS_H_
