#include "frameworks/tensorflow/native/step_group.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "abi/byteps.h"

namespace byteps::tensorflow {
namespace {

using binding::Outcome;

// Ended runs that are remembered, whose operations TensorFlow may still begin.
constexpr ptrdiff_t kRuns = 8;

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

StepGroup::Place StepGroup::Add(const std::string& name, int64_t graph, GiveUp give_up) {
  const std::lock_guard lock(mutex_);
  const auto known =
      std::find_if(members_.begin(), members_.end(), [&](const Member& each) { return each.name == name; });
  const auto member = static_cast<size_t>(known - members_.begin());
  if (known == members_.end()) {
    members_.push_back({name, std::move(give_up), {}, std::make_unique<binding::GivingUp>()});
  } else {
    known->give_up = std::move(give_up);
  }
  graphs_[graph].insert(member);
  return {member, graph};
}

void StepGroup::Begin(const Place& place, const Step& step, uint64_t session, const GiveUp& give_up,
                      const binding::Done& start) {
  Calls calls;
  Outcome refused;
  binding::GivingUp* before = nullptr;
  {
    const std::lock_guard lock(mutex_);
    // Of a session that is over: the operation fails by itself.
    if (session >= session_) {
      Enter(session);
      if (Run* run = RunFor(place, step, &calls, &refused)) {
        State& state = run->states[place.member];
        if (state == State::kWaiting) --run->waiting;
        state = State::kBegun;
        Member& own = members_[place.member];
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

StepGroup::Run* StepGroup::RunFor(const Place& place, const Step& step, Calls* calls, Outcome* why) {
  for (Run& run : runs_) {
    if (!(run.step == step)) continue;
    if (run.closed) {
      *why = {run.why.code, "not sent: " + run.why.message};
      return nullptr;
    }
    // Its kernel may have been made while the step ran.
    run.states.resize(members_.size(), State::kNone);
    if (run.states[place.member] == State::kNone || run.states[place.member] == State::kWaiting) return &run;
  }
  return &New(place.graph, step, calls);
}

StepGroup::Run& StepGroup::New(int64_t graph, const Step& step, Calls* calls) {
  for (Run& run : runs_) {
    // Calls of one function, or iterations of one loop, may be in flight together.
    if (run.step.id != step.id) Close(run, {BPS_CANCELLED, kEnded}, calls);
  }
  const auto has_ended = [](const Run& run) { return run.closed || run.waiting == 0; };
  for (auto ended = std::count_if(runs_.begin(), runs_.end(), has_ended); ended >= kRuns; --ended) {
    runs_.erase(std::find_if(runs_.begin(), runs_.end(), has_ended));
  }
  const std::set<size_t>& of_graph = graphs_[graph];
  runs_.push_back({step, std::vector<State>(members_.size(), State::kNone), of_graph.size(), false, {}});
  for (const size_t member : of_graph) runs_.back().states[member] = State::kWaiting;
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
