#include "server/reducer/round_errors.h"

#include <algorithm>
#include <cstddef>

#include "abi/byteps.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "server/reducer/kept_value.h"
#include "server/reducer/served_session.h"

namespace byteps {
namespace {

constexpr size_t kMostNames = 8;  // in one error

// "rank 1 (...), rank 2 (...) and 5 more" of those contributors of the round for which `which` holds. Of one that is
// absent and speaks for several workers, all of these: which of them is missing only they know.
template <typename Which>
std::string Names(const Round& round, const Which& which) {
  const ServedSession& session = *round.session();
  std::string text;
  size_t count = 0;
  const auto add = [&](uint32_t rank) {
    if (++count <= kMostNames) absl::StrAppend(&text, text.empty() ? "" : ", ", session.workers[rank].description);
  };
  for (uint32_t index = 0; index < round.contributors(); ++index) {
    const Contribution& contribution = round.of(index);
    if (!which(contribution.state)) continue;
    if (contribution.state != ContributionState::kAbsent) {
      add(contribution.rank);
      continue;
    }
    for (uint32_t rank = session.contributors.first(index); rank < session.contributors.last(index); ++rank) add(rank);
  }
  if (count > kMostNames) absl::StrAppend(&text, " and ", count - kMostNames, " more");
  return text;
}

}  // namespace

absl::Status OverdueError(Time now, const Round& round, bool awaited) {
  const ServedSession& session = *round.session();
  const std::string absent = Names(round, [](ContributionState state) { return state == ContributionState::kAbsent; });
  const std::string coming = Names(round, [](ContributionState state) {
    return state == ContributionState::kComing || state == ContributionState::kAsked;
  });
  std::string text = absl::StrCat((now - round.opened()) / kMillisecond, " ms after the first of it came ");
  if (!absent.empty()) {
    // Whether they lack the call or the link, only they know.
    absl::StrAppend(&text, "nothing of it had come from ", absent, ": not submitted",
                    session.contributors.joint() ? " by all of them" : "", ", or still queued there");
  } else if (!coming.empty()) {
    absl::StrAppend(&text, "the data of ", coming, " has not arrived");
  } else if (awaited) {
    absl::StrAppend(&text, "memory that was shown to the server has not arrived there");
  } else if (round.kept != nullptr && round.count(ContributionState::kFolded) != 0) {
    absl::StrAppend(&text, AheadText(round));
  } else if (round.state() == RoundState::kReady) {
    absl::StrAppend(&text, "the server has not come to fold it");
  } else {
    absl::StrAppend(&text, "the server has had no memory for it (BYTEPS_SERVER_MEMORY)");
  }
  return absl::DeadlineExceededError(text);
}

std::string AheadText(const Round& round) {
  const ServedSession& session = *round.session();
  const KeptValue& value = *round.kept;
  const uint64_t own = value.pushes[round.of(0).rank];
  std::string slow;
  for (size_t rank = 0; rank < value.pushes.size(); ++rank) {
    if (own - std::min(own, value.pushes[rank]) < session.staleness) continue;
    absl::StrAppend(&slow, slow.empty() ? "" : ", ", session.workers[rank].description, " with ", value.pushes[rank]);
  }
  if (slow.empty()) return "the server has had no memory for the answer (BYTEPS_SERVER_MEMORY)";
  return absl::StrCat("this rank has pushed it ", own, " times, and may be ", session.staleness - 1,
                      " ahead (BYTEPS_STALENESS) of ", slow);
}

std::string StallText(Time now, const Round& round) {
  const auto absent = [](ContributionState state) { return state == ContributionState::kAbsent; };
  return absl::StrCat("submitted by ", Names(round, [&](ContributionState state) { return !absent(state); }),
                      " and for ", (now - round.opened()) / kSecond, " s not by ", Names(round, absent),
                      round.session()->contributors.joint() ? " (not by all of them)" : "");
}

absl::Status MismatchError(const Round& round, uint32_t rank, const Push& push) {
  const std::string others = Names(round, [](ContributionState state) { return state != ContributionState::kAbsent; });
  std::string theirs = round.DescribeAsked();
  std::string ours = DescribeRequest(push.header, push.shape);
  if (theirs == ours) {
    absl::StrAppend(&theirs, ", cut into ", round.header().parts, " parts");
    absl::StrAppend(&ours, ", cut into ", push.header.parts, " parts");
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks disagree: ", others, ": ", theirs, "; ", round.session()->workers[rank].description, ": ", ours,
      theirs == ours ? " (of another shape, scaling or number, or in a group of other members)" : ""));
}

absl::Status PastError(uint64_t number, const Round* current, uint64_t past, const FailedRound* failed) {
  const std::string others =
      current == nullptr ? "the other ranks"
                         : Names(*current, [](ContributionState state) { return state != ContributionState::kAbsent; });
  std::string text = absl::StrCat("round ", number, " is past: ", others, " went on to round ", past);
  if (failed != nullptr && failed->number > number) {
    absl::StrAppend(&text, "; round ", failed->number, " has failed: ", failed->why.message());
  }
  return absl::AbortedError(text);
}

absl::Status GivenUpError(const std::string& worker, int32_t code, std::string_view reason) {
  // Where this worker only passes on what another server told it, the others hear the same, whichever is first.
  const int32_t told = code == BPS_OK || code == BPS_CANCELLED ? BPS_ABORTED : code;
  const std::string why(reason);
  return MakeStatus(told, reason.find("gave up") != std::string_view::npos
                              ? why
                              : absl::StrCat(worker, " gave up: ", why.empty() ? "no reason" : why));
}

absl::Status AbandonedError(const std::string& worker, uint64_t later) {
  return absl::AbortedError(absl::StrCat(worker, " has given this round up and gone on to round ", later));
}

}  // namespace byteps
