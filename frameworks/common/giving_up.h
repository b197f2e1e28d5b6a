// giving_up.h - the rounds of one name that are being given up, and the operation that comes behind them.
//
// The library refuses an operation of a name while a round of it is given up (BPS_ALREADY_EXISTS, bps_give_up). A
// binding that gives rounds up when the next operation begins lets that one wait:
//
//     GiveUpPushPull(TheSession(), tensor, op, reason, giving_up.One());
//     giving_up.Then([=] { PushPull(...); });   // now, if none is being given up, or when the last one has ended
//
// Threads: any. What waits is called on the thread that has ended the last one, a thread of the library perhaps: it
// must not block. Lives as long as a round is being given up.
#ifndef BYTEPS_FRAMEWORKS_COMMON_GIVING_UP_H_
#define BYTEPS_FRAMEWORKS_COMMON_GIVING_UP_H_

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "frameworks/common/attached_session.h"
#include "frameworks/common/operation.h"

namespace byteps::binding {

class GivingUp {
 public:
  // One more is being given up, until what this returns is called, once; how it ends does not matter.
  Done One() {
    const std::lock_guard lock(mutex_);
    ++count_;
    return [this](const Outcome&) { End(); };
  }

  void Then(std::function<void()> start) {
    {
      const std::lock_guard lock(mutex_);
      if (count_ != 0) {
        waiting_.push_back(std::move(start));
        return;
      }
    }
    start();
  }

 private:
  void End() {
    std::vector<std::function<void()>> ready;
    {
      const std::lock_guard lock(mutex_);
      if (--count_ == 0) ready.swap(waiting_);
    }
    for (const std::function<void()>& start : ready) start();
  }

  std::mutex mutex_;
  size_t count_ = 0;
  std::vector<std::function<void()>> waiting_;
};

}  // namespace byteps::binding

#endif  // BYTEPS_FRAMEWORKS_COMMON_GIVING_UP_H_
