#include "tests/sim/node.h"

#include <algorithm>
#include <utility>

namespace byteps {

Node::Node(sim::SimFabric* fabric, std::string name, const JobOptions& options, std::function<void()> start)
    : fabric_(fabric), name_(std::move(name)), slowness_(options.slowness) {
  auto at = options.start_at.find(name_);
  const Time when =
      at != options.start_at.end() ? at->second : now() + fabric_->random().Between(0, options.start_spread);
  fabric_->Timer(when, [this, start = std::move(start)] {
    if (!alive()) return;
    start();
    Wake();
  });
}

void Node::Wake() {
  if (awake_ || !alive()) return;
  awake_ = true;
  fabric_->Timer(now() + fabric_->random().Between(0, slowness_), [this] { Run(); });
}

void Node::Run() {
  awake_ = false;
  if (!alive()) return;
  constexpr int kMostRounds = 100'000;
  int rounds = 0;
  while (Step(now())) {
    if (++rounds > kMostRounds) return fabric_->Violation(name_ + " always says that something happened");
  }
  const Time next = NextTimer();
  if (next == kNever) return;
  // A timer that is due and does nothing would stop the clock.
  const Time at = std::max(next, now() + 1000);
  if (at >= timer_) return;
  timer_ = at;
  fabric_->Timer(at, [this, at] {
    if (timer_ == at) timer_ = kNever;
    Wake();
  });
}

}  // namespace byteps
