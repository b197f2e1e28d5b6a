#include "frameworks/tensorflow/native/step_group.h"

#include <algorithm>
#include <map>
#include <utility>

#include "abi/byteps.h"

namespace byteps::tensorflow {
namespace {

using binding::Outcome;

// Ended runs that are remembered, whose operations TensorFlow may still begin.
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
    members_.push_back({name, std::move(give_up), {}, std::make_unique<binding::GivingUp>()});
    return members_.size() - 1;
  }
  known->give_up = std::move(give_up);
  return static_cast<size_t>(known - members_.begin());
}

void StepGroup::Begin(size_t member, const Step& step, uint64_t session, const GiveUp& give_up,
                      const binding::Done& start) {
  Calls calls;
  Outcome refused;
  binding::GivingUp* before = nullptr;
  {
    const std::lock_guard lock(mutex_);
    // Of a session that is over: the operation fails by itself.
    if (session >= session_) {
      Enter(session);
      if (Run* run = RunFor(member, step, &calls, &refused)) {
        run->states[member] = State::kBegun;
        --run->waiting;
        Member& own = members_[member];
        for (const uint64_t iteration : own.owed) {
          calls.push_back(
              [&give_up, iteration, ended = own.giving_up_rounds->One()] { give_up(iteration, kEnded, ended); });
        }
        own.owed.clear();
        before = own.giving_up_rounds.get();
      }
    }
  }
  for (const auto& call : calls) call();
  if (before == nullptr) return start(refused);
  before->Then([start] { start({}); });
}

void StepGroup::Fail(const Step& step, uint64_t session, const std::string& name, const Outcome& outcome) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    if (session != session_) return;
    const Outcome why{outcome.code, "'" + name + "' of the same step failed: " + outcome.message};
    for (Run& run : runs_) {
      if (run.step == step) Close(run, why, &calls);
    }
  }
  for (const auto& call : calls) call();
}

StepGroup::Run* StepGroup::RunFor(size_t member, const Step& step, Calls* calls, Outcome* why) {
  for (Run& run : runs_) {
    if (!(run.step == step)) continue;
    if (run.closed) {
      *why = {run.why.code, "not sent: " + run.why.message};
      return nullptr;
    }
    // Its kernel may have been made while the step ran.
    run.waiting += members_.size() - run.states.size();
    run.states.resize(members_.size(), State::kWaiting);
    if (run.states[member] == State::kWaiting) return &run;
  }
  return &New(step, calls);
}

StepGroup::Run& StepGroup::New(const Step& step, Calls* calls) {
  for (Run& run : runs_) {
    // Calls of one function, or iterations of one loop, may be in flight together.
    if (run.step.id != step.id) Close(run, {BPS_CANCELLED, kEnded}, calls);
  }
  size_t ended = static_cast<size_t>(
      std::count_if(runs_.begin(), runs_.end(), [](const Run& run) { return run.closed || run.waiting == 0; }));
  while (ended >= kRuns) {
    const auto oldest =
        std::find_if(runs_.begin(), runs_.end(), [](const Run& run) { return run.closed || run.waiting == 0; });
    runs_.erase(oldest);
    --ended;
  }
  runs_.push_back({step, std::vector<State>(members_.size(), State::kWaiting), members_.size(), false, {}});
  return runs_.back();
}

void StepGroup::Close(Run& run, const Outcome& why, Calls* calls) {
  if (run.closed) return;
  run.closed = true;
  run.why = why;
  for (size_t index = 0; index < run.states.size(); ++index) {
    if (run.states[index] != State::kWaiting) continue;
    run.states[index] = State::kGivenUp;
    Member& member = members_[index];
    if (member.give_up == nullptr) {
      member.owed.push_back(run.step.iteration);
      continue;
    }
    calls->push_back([give_up = member.give_up, iteration = run.step.iteration, reason = why.message,
                      ended = member.giving_up_rounds->One()] { give_up(iteration, reason, ended); });
  }
  run.waiting = 0;
}

void StepGroup::Enter(uint64_t session) {
  if (session == session_) return;
  session_ = session;
  runs_.clear();
  for (Member& member : members_) member.owed.clear();
}

}  // namespace byteps::tensorflow
