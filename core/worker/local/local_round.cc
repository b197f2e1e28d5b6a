#include "core/worker/local/local_round.h"

#include <algorithm>
#include <stdexcept>

#include "abi/byteps.h"
#include "absl/strings/str_cat.h"

namespace byteps {

const char* LocalStateName(LocalState state) {
  switch (state) {
    case LocalState::kAwaited:
      return "awaited";
    case LocalState::kGathering:
      return "gathering";
    case LocalState::kWorking:
      return "working";
    case LocalState::kFinishing:
      return "finishing";
    case LocalState::kReleasing:
      return "releasing";
    case LocalState::kRefused:
      return "refused";
  }
  return "unknown";
}

bool LocalMayMove(LocalState from, LocalState to) {
  switch (to) {
    case LocalState::kAwaited:
      return false;
    case LocalState::kGathering:
    case LocalState::kRefused:
      return from == LocalState::kAwaited;
    case LocalState::kWorking:
      return from == LocalState::kGathering;
    case LocalState::kFinishing:
      return from == LocalState::kWorking;
    case LocalState::kReleasing:
      return from == LocalState::kGathering || from == LocalState::kWorking || from == LocalState::kFinishing;
  }
  return false;
}

void LocalRound::Move(LocalState to) {
  if (!LocalMayMove(state_, to)) {
    throw std::logic_error(
        absl::StrCat("a round of the local stage moved from ", LocalStateName(state_), " to ", LocalStateName(to)));
  }
  state_ = to;
}

Reduction PartialReduction(uint32_t dtype, int32_t reduction) {
  return {dtype, reduction == BPS_AVERAGE ? BPS_SUM : reduction};
}

bool LocalRound::AllOffered() const {
  return std::all_of(reports.begin(), reports.end(), [](const LocalReport& report) { return report.offered; });
}

bool LocalRound::AllEnded() const {
  return std::all_of(reports.begin(), reports.end(), [](const LocalReport& report) { return report.ended; });
}

std::string LocalRound::Describe() const {
  const auto count = [&](auto&& what) { return std::count_if(reports.begin(), reports.end(), what); };
  return absl::StrCat("round ", number_, " of name ", name_id_, " ", LocalStateName(state_), ": ",
                      count([](const LocalReport& report) { return report.offered; }), " of ", reports.size(),
                      " offered, ", count([](const LocalReport& report) { return report.ended; }), " ended");
}

}  // namespace byteps
