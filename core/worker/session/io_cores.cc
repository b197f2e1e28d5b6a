#include "core/worker/session/io_cores.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace byteps {
namespace {

constexpr const char* kKnob = "BYTEPS_IO_CPU_CORES";

absl::Status Wrong(const std::string& text, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(kKnob, "=", text, ": ", what));
}

// A number of digits alone: SimpleAtoi takes signs and blanks.
bool ReadCore(absl::string_view text, int* core) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos &&
         absl::SimpleAtoi(text, core);
}

// Adds "8" or "0-3".
bool AddRange(absl::string_view part, cpu_set_t* cores) {
  const std::vector<absl::string_view> ends = absl::StrSplit(absl::StripAsciiWhitespace(part), absl::MaxSplits('-', 1));
  int first = 0, last = 0;
  if (!ReadCore(ends.front(), &first) || !ReadCore(ends.back(), &last)) return false;
  if (first > last || last >= CPU_SETSIZE) return false;
  for (int core = first; core <= last; ++core) CPU_SET(core, cores);
  return true;
}

std::string Print(const cpu_set_t& cores) {
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) absl::StrAppend(&text, text.empty() ? "" : ",", core);
  }
  return text;
}

}  // namespace

absl::StatusOr<IoCores> IoCores::Read(const std::string& text, int32_t local_rank) {
  IoCores cores;
  if (text.empty()) return cores;
  const std::vector<std::string> sections = absl::StrSplit(text, ':');
  if (sections.size() > 1 && static_cast<size_t>(local_rank) >= sections.size()) {
    return Wrong(text, absl::StrCat(sections.size(), " lists, none for local rank ", local_rank,
                                    "; one list for all local ranks, or one for each, separated by colons"));
  }
  const std::string& section = sections.size() > 1 ? sections[static_cast<size_t>(local_rank)] : sections.front();
  for (const absl::string_view part : absl::StrSplit(section, ',')) {
    if (!AddRange(part, &cores.cores_)) {
      return Wrong(text, absl::StrCat("\"", section, "\" is no list of cores, such as 0-3,8"));
    }
  }
  cores.chosen_ = true;
  // The kernel trims a set silently, or refuses all of it.
  const Scope tried(cores);
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (!tried.moved()) return Wrong(text, absl::StrCat("cannot run on these cores: ", std::strerror(errno)));
  if (sched_getaffinity(0, sizeof usable, &usable) != 0 || !CPU_EQUAL(&usable, &cores.cores_)) {
    cpu_set_t missing;
    CPU_XOR(&missing, &cores.cores_, &usable);
    return Wrong(text, absl::StrCat("this process may not use cores ", Print(missing)));
  }
  return cores;
}

IoCores::Scope::Scope(const IoCores& cores) {
  if (!cores.chosen_ || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  moved_ = sched_setaffinity(0, sizeof cores.cores_, &cores.cores_) == 0;
}

IoCores::Scope::~Scope() {
  if (moved_) sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace byteps
