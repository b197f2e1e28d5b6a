// step_group.h - operations that a graph runs together, such as those of the gradients of a training step.
//
// Operations of one name meet in the order in which each rank begins them. Where a step ends half-way on one rank,
// because one of its operations or what computes a gradient has failed there, TensorFlow does not begin the rest of it,
// and this rank's later operations would meet those of earlier steps of other ranks. So the rounds of what is left out
// are given up: at once when an operation of the group has failed, else when the group's next step begins. Of a step of
// which no operation has begun nothing is: a program that tries it again comes to the same rounds.
//
// A step is what TensorFlow calls one: a run of a graph. Two at a time, of one group, would not know whose operation
// comes next; then the rest of the first is refused. In one step a function may be called several times, and a loop has
// iterations.
//
//     StepGroup& group = StepGroup::Of("gradients of the model");
//     const StepGroup::Place place = group.Add("gradient.a", graph, give_up);  // a kernel that is made
//     group.Begin(place, step, session, give_up_here, [](const Outcome& refused) { ... });  // it runs
//     group.Fail(step, session, "gradient.a", outcome);                 // it has failed
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_GROUP_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "frameworks/common/attached_session.h"
#include "frameworks/common/giving_up.h"
#include "frameworks/common/operation.h"

namespace byteps::tensorflow {

class StepGroup {
 public:
  // One run of a graph, or one iteration of a loop in it.
  struct Step {
    int64_t id = 0;
    uint64_t iteration = 0;  // counts from 1; 0: in no loop (iteration.h)

    bool operator==(const Step&) const = default;
  };

  // Gives one round of a member up, of this iteration; `reason` is for people, `ended` is called once it has ended.
  using GiveUp = std::function<void(uint64_t iteration, const std::string& reason, binding::Done ended)>;

  // The group of this name. It lives as long as the process, whose graphs come and go.
  static StepGroup& Of(const std::string& name);

  // A member in a graph.
  struct Place {
    size_t member = 0;
    int64_t graph = 0;
  };

  // The member of this name. Graphs that were traced one after another share it; a step consists of those of its graph.
  // `give_up` replaces that of an earlier one; empty: it can be given up only when it begins again, since its shape is
  // not known before.
  Place Add(const std::string& name, int64_t graph, GiveUp give_up);

  // A member's operation may be sent: `start` is called with OK, now or when the rounds of this member that are being
  // given up have ended; or with why it is not sent, and ends so. What the member owes is given up by `give_up`.
  // `session` counts the process's sessions: nothing is left out of an earlier one.
  void Begin(const Place& place, const Step& step, uint64_t session, const GiveUp& give_up, const binding::Done& start);

  // A member's operation has failed, or could not begin: gives up what has not begun of the step.
  void Fail(const Step& step, uint64_t session, const std::string& name, const binding::Outcome& outcome);

 private:
  enum class State : uint8_t { kNone, kWaiting, kBegun, kGivenUp };  // kNone: not of this graph
  struct Member {
    std::string name;
    GiveUp give_up;
    std::vector<uint64_t> owed;                           // iterations of rounds that are given up when it begins
    std::unique_ptr<binding::GivingUp> giving_up_rounds;  // does not move
  };
  struct Run {
    Step step;
    std::vector<State> states;  // of the members
    size_t waiting = 0;         // of these
    bool closed = false;
    binding::Outcome why;  // it was closed
  };
  // What is called without the lock.
  using Calls = std::vector<std::function<void()>>;

  // The run in which the member begins: the first one of this step where it waits, or a new one. nullptr: it is not to
  // begin, for `why`.
  Run* RunFor(const Place& place, const Step& step, Calls* calls, binding::Outcome* why);
  // A new run, which ends earlier steps.
  Run& New(int64_t graph, const Step& step, Calls* calls);
  void Close(Run& run, const binding::Outcome& why, Calls* calls);
  // Forgets what belongs to an earlier session.
  void Enter(uint64_t session);

  std::mutex mutex_;
  uint64_t session_ = 0;
  std::vector<Member> members_;
  std::map<int64_t, std::set<size_t>> graphs_;  // their members
  std::deque<Run> runs_;                        // the oldest first
};

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_GROUP_H_
