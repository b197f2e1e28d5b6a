#include "core/worker/servers/partition.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace byteps {

const char* PartitionStateName(PartitionState state) {
  switch (state) {
    case PartitionState::kIdle:
      return "idle";
    case PartitionState::kQueued:
      return "queued";
    case PartitionState::kHeld:
      return "held";
    case PartitionState::kPosted:
      return "posted";
    case PartitionState::kPushed:
      return "pushed";
    case PartitionState::kHome:
      return "home";
    case PartitionState::kFailed:
      return "failed";
  }
  return "unknown";
}

bool PartitionMayMove(PartitionState from, PartitionState to) {
  using S = PartitionState;
  switch (to) {
    case S::kIdle:
      return false;
    case S::kQueued:
      return from == S::kIdle || from == S::kPosted || from == S::kPushed;
    case S::kHeld:
      return from == S::kQueued;
    case S::kPosted:
      return from == S::kQueued || from == S::kHeld;
    case S::kPushed:
      return from == S::kPosted;
    case S::kHome:
      return from == S::kPosted || from == S::kPushed;
    case S::kFailed:
      return from != S::kHome && from != S::kFailed;
  }
  return false;
}

void Partition::Move(PartitionState to) {
  if (!PartitionMayMove(state_, to)) {
    throw std::logic_error(absl::StrCat("partition ", part, " cannot go from ", PartitionStateName(state_), " to ",
                                        PartitionStateName(to)));
  }
  state_ = to;
}

}  // namespace byteps
