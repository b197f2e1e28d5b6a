// step_group.h - operations that a graph runs together, such as those of the gradients of a training step.
//
// Operations of one name meet in the order in which each rank begins them. Where a step ends half-way on one rank,
// because one of its operations or what computes a gradient has failed there, TensorFlow does not begin the rest of it,
// and this rank's later operations would meet those of earlier steps of other ranks. So the rounds of what is left out
// are given up: at once when an operation of the group has failed, else when the group's next step begins.
//
// A step is what TensorFlow calls one: a run of a graph. Two at a time, of one group, would not know whose operation
// comes next; then the rest of the first is refused.
//
//     StepGroup& group = StepGroup::Of("gradients of the model");
//     const size_t member = group.Add("gradient.a", give_up);           // a kernel that is made
//     Outcome refused = group.Begin(member, step, session, give_up_one);  // it runs; not OK: not sent, and ends so
//     group.Fail(step, session, "gradient.a", outcome);                 // it has failed
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_GROUP_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "frameworks/common/attached_session.h"

namespace byteps::tensorflow {

class StepGroup {
 public:
  // One run of a graph, or one iteration of a loop in it.
  struct Step {
    int64_t id = 0;
    uint64_t iteration = 0;  // counts from 1; 0: in no loop (iteration.h)

    bool operator==(const Step&) const = default;
  };

  // Gives one round of a member up, of this iteration; `reason` is for people. Called with the group locked: must not
  // come back to it.
  using GiveUp = std::function<void(uint64_t iteration, const std::string& reason)>;

  // The group of this name. It lives as long as the process, whose graphs come and go.
  static StepGroup& Of(const std::string& name);

  // The member of this name, which several graphs may have. `give_up` replaces that of an earlier one; empty: it can be
  // given up only when it begins again, since its shape is not known before.
  size_t Add(const std::string& name, GiveUp give_up);

  // A member's operation is about to be sent. First calls `give_up` for what it has left out. `session` tells the
  // process's sessions apart: nothing is left out of an earlier one.
  binding::Outcome Begin(size_t member, const Step& step, uint64_t session, const GiveUp& give_up);

  // A member's operation has failed, or could not begin: gives up what has not begun of the step.
  void Fail(const Step& step, uint64_t session, const std::string& name, const binding::Outcome& outcome);

 private:
  enum class State : uint8_t { kWaiting, kBegun, kGivenUp };
  struct Member {
    std::string name;
    GiveUp give_up;
    uint64_t owed = 0;  // rounds that are given up when it begins
  };
  struct Run {
    Step step;
    std::vector<State> states;  // of the members that were there when it began
    bool closed = false;
    std::string why;  // it was closed
  };

  // The latest run of this step; nullptr: none is remembered.
  Run* Find(const Step& step);
  // A new run, which ends earlier ones.
  Run& New(const Step& step);
  void Close(Run& run, const std::string& why);
  // Forgets what belongs to an earlier session.
  void Enter(uint64_t session);

  std::mutex mutex_;  // also while rounds are given up: later ones of the name come behind them
  uint64_t session_ = 0;
  std::vector<Member> members_;
  std::deque<Run> runs_;  // the latest ones, the newest last
};

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_GROUP_H_
