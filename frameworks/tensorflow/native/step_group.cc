#include "frameworks/tensorflow/native/step_group.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "abi/byteps.h"

namespace byteps::tensorflow {
namespace {

using binding::Outcome;

// Runs that are remembered: the one that goes on, and ended ones whose operations TensorFlow may still begin.
constexpr size_t kRuns = 8;

constexpr const char* kEnded = "a step of its program ended before this operation";

}  // namespace

StepGroup& StepGroup::Of(const std::string& name) {
  // Never destroyed: threads of TensorFlow may outlive main().
  static auto* const kMutex = new std::mutex;
  static auto* const kOfName = new std::map<std::string, std::unique_ptr<StepGroup>>;
  const std::lock_guard lock(*kMutex);
  std::unique_ptr<StepGroup>& group = (*kOfName)[name];
  if (group == nullptr) group = std::make_unique<StepGroup>();
  return *group;
}

size_t StepGroup::Add(const std::string& name, GiveUp give_up) {
  const std::lock_guard lock(mutex_);
  const auto known =
      std::find_if(members_.begin(), members_.end(), [&](const Member& each) { return each.name == name; });
  if (known == members_.end()) {
    members_.push_back({name, std::move(give_up)});
    return members_.size() - 1;
  }
  known->give_up = std::move(give_up);
  return static_cast<size_t>(known - members_.begin());
}

Outcome StepGroup::Begin(size_t member, const Step& step, uint64_t session, const GiveUp& give_up) {
  const std::lock_guard lock(mutex_);
  Enter(session);
  Run* run = Find(step);
  if (run != nullptr) {
    // A kernel that was made while the step ran.
    if (!run->closed) run->states.resize(members_.size(), State::kWaiting);
    if (member < run->states.size() && run->states[member] == State::kGivenUp) {
      return {BPS_CANCELLED, "not sent: " + run->why};
    }
  }
  // A member that has begun already runs again: its function is called a second time in this step.
  if (run == nullptr || member >= run->states.size() || run->states[member] == State::kBegun) {
    run = &New(step);
  }
  Member& own = members_[member];
  for (; own.owed > 0; --own.owed) give_up(step.iteration, kEnded);
  run->states[member] = State::kBegun;
  return {};
}

void StepGroup::Fail(const Step& step, uint64_t session, const std::string& name, const Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  Run* run = session == session_ ? Find(step) : nullptr;
  // Without one nothing of the step has been sent: a program that tries it again comes to the same rounds.
  if (run != nullptr) Close(*run, "'" + name + "' of the same step failed: " + outcome.message);
}

StepGroup::Run* StepGroup::Find(const Step& step) {
  const auto found = std::find_if(runs_.rbegin(), runs_.rend(), [&](const Run& run) { return run.step == step; });
  return found == runs_.rend() ? nullptr : &*found;
}

void StepGroup::Close(Run& run, const std::string& why) {
  if (run.closed) return;
  run.closed = true;
  run.why = why;
  for (size_t index = 0; index < run.states.size(); ++index) {
    if (run.states[index] != State::kWaiting) continue;
    run.states[index] = State::kGivenUp;
    Member& member = members_[index];
    if (member.give_up != nullptr) {
      member.give_up(run.step.iteration, why);
    } else {
      ++member.owed;
    }
  }
}

StepGroup::Run& StepGroup::New(const Step& step) {
  for (Run& run : runs_) {
    // Iterations of one loop may be in flight together.
    if (run.step.id == step.id && run.step.iteration != step.iteration) continue;
    Close(run, kEnded);
  }
  if (runs_.size() == kRuns) runs_.pop_front();
  runs_.push_back({step, std::vector<State>(members_.size(), State::kWaiting)});
  return runs_.back();
}

void StepGroup::Enter(uint64_t session) {
  if (session == session_) return;
  session_ = session;
  runs_.clear();
  for (Member& member : members_) member.owed = 0;
}

}  // namespace byteps::tensorflow
