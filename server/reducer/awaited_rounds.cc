#include "server/reducer/awaited_rounds.h"

#include <algorithm>
#include <cstddef>

namespace byteps {
namespace {

constexpr Time kInterval = 100'000;

}  // namespace

void AwaitedRounds::Add(Time now, Round* round) {
  if (!Contains(*round)) rounds_.push_back(round);
  look_at_ = std::min(look_at_, now + kInterval);
}

void AwaitedRounds::Remove(Round* round) {
  if (!rounds_.empty()) std::erase(rounds_, round);
}

bool AwaitedRounds::Contains(const Round& round) const {
  return std::find(rounds_.begin(), rounds_.end(), &round) != rounds_.end();
}

bool AwaitedRounds::Look(Time now, const std::function<void(Round*)>& look) {
  if (now < look_at_) return false;
  look_at_ = kNever;
  for (size_t count = rounds_.size(); count > 0 && !rounds_.empty(); --count) {
    Round* round = rounds_.front();
    rounds_.pop_front();
    look(round);
  }
  return true;
}

}  // namespace byteps
