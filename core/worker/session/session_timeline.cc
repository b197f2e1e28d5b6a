// What a session tells its timeline, and when there is one.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/worker/session/session.h"

namespace byteps {
namespace {

// Tensors are known by their operation's number, other collectives by their request, which lives until they end.
constexpr uint64_t kByRequest = uint64_t{1} << 63;

// Sessions of one process have different names, and so have the files that a variable asks all of them for.
std::string OfSession(const std::filesystem::path& path, std::string session) {
  if (session.empty()) return path.string();
  std::replace(session.begin(), session.end(), '/', '_');
  std::filesystem::path named = path;
  return named.replace_filename(absl::StrCat(path.stem().string(), ".", session, path.extension().string())).string();
}

uint64_t NumberOf(const Request& request) { return reinterpret_cast<uintptr_t>(&request) | kByRequest; }

}  // namespace

absl::Status Session::StartAskedTimeline() {
  const Config& config = given_.config;
  TimelineOptions options{
      .path = {}, .rank = info_.rank, .size = info_.size, .mark_steps = config.GetBool("BYTEPS_TIMELINE_MARK_STEPS")};
  if (config.GetBool("BYTEPS_TRACE_ON")) {
    const int64_t first = config.GetInt("BYTEPS_TRACE_START_STEP"), last = config.GetInt("BYTEPS_TRACE_END_STEP");
    if (first > last) {
      return absl::InvalidArgumentError(
          absl::StrCat("BYTEPS_TRACE_START_STEP is ", first, ", behind BYTEPS_TRACE_END_STEP, which is ", last));
    }
    options.first_round = static_cast<uint64_t>(first - 1);
    options.last_round = static_cast<uint64_t>(last - 1);
    const std::filesystem::path folder(config.GetString("BYTEPS_TRACE_DIR"));
    options.path = OfSession(folder / absl::StrCat(info_.local_rank) / "comm.json", given_.name);
  } else {
    const std::string path = config.GetString("BYTEPS_TIMELINE");
    // Horovod's word for "later, by start_timeline".
    if (path.empty() || path == "DYNAMIC") return absl::OkStatus();
    options.path = Timeline::PathOf(OfSession(path, given_.name), info_.rank);
  }
  return timeline_.Start(std::move(options));
}

absl::Status Session::StartTimeline(std::string_view path, bool mark_steps) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  return timeline_.Start(
      {.path = Timeline::PathOf(path, info_.rank), .rank = info_.rank, .size = info_.size, .mark_steps = mark_steps});
}

absl::Status Session::StopTimeline() {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  return timeline_.Stop();
}

absl::Status Session::Mark(TimelineEvent event, std::string_view name) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  timeline_.Mark(event, name);
  return absl::OkStatus();
}

void Session::NoteSubmitted(Submission* asked) {
  asked->timeline = &timeline_;
  asked->submitted_at = Now();
}

void Session::NoteSubmitted(const Collective& asked) {
  if (!timeline_.wants_now()) return;
  std::string name = asked.name;
  if (IsPairwise(asked.kind)) name = absl::StrCat(KindName(asked.kind), " ", asked.peer, ", tag ", asked.tag);
  if (asked.set != nullptr && !asked.set->is_all()) absl::StrAppend(&name, ", ", asked.set->Describe());
  TimelineRecord record;
  record.event = TimelineEvent::kSubmitted;
  record.operation = NumberOf(*asked.request);
  record.at = Now();
  record.name = timeline_.Keep(name);
  record.label = KindName(asked.kind);
  record.bytes = asked.bytes();
  record.priority = asked.priority;
  timeline_.Note(record);
}

void Session::NoteEnded(size_t ended) {
  for (size_t i = completions_.size() - ended; i < completions_.size(); ++i) {
    TimelineRecord record;
    record.event = TimelineEvent::kEnded;
    record.operation = NumberOf(*completions_[i].request);
    record.at = Now();
    record.number = static_cast<uint64_t>(StatusCode(completions_[i].outcome));
    timeline_.Note(record);
  }
}

}  // namespace byteps
