// awaited_rounds.h - rounds that stand aside: some of their memory was announced before it was here.
//
//     awaited.Add(now, round);
//     awaited.Look(now, [&](Round* round) { ... });     // those that were there; what is not ready yet is added again
//     awaited.NextTimer();                              // when to look
//
// Threads: those of its owner.
#ifndef BYTEPS_SERVER_REDUCER_AWAITED_ROUNDS_H_
#define BYTEPS_SERVER_REDUCER_AWAITED_ROUNDS_H_

#include <deque>
#include <functional>

#include "core/base/time.h"
#include "server/reducer/round.h"

namespace byteps {

class AwaitedRounds {
 public:
  // Nothing, if it is here.
  void Add(Time now, Round* round);
  // It is not waited for any more; nothing, if it is not here.
  void Remove(Round* round);
  bool Contains(const Round& round) const;
  // If it is time to look: takes each of them off the list and hands it over, which may remove others. False if it is
  // not.
  bool Look(Time now, const std::function<void(Round*)>& look);
  Time NextTimer() const { return look_at_; }

 private:
  std::deque<Round*> rounds_;
  Time look_at_ = kNever;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_REDUCER_AWAITED_ROUNDS_H_
