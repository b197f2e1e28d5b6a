// The exported functions of the timeline: check what they were given, and ask the session.
#include <string_view>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"
#include "core/worker/api/boundary.h"
#include "core/worker/api/check_args.h"
#include "core/worker/api/handles.h"
#include "core/worker/timeline/timeline_record.h"

namespace byteps {
namespace {

absl::Status CheckText(const char* text, const char* what) {
  RETURN_IF_ERROR(CheckNotNull(text, what));
  if (*text == 0) return absl::InvalidArgumentError(absl::StrCat(what, " is empty"));
  if (!IsUtf8(text)) return absl::InvalidArgumentError(absl::StrCat(what, " is not UTF-8"));
  return absl::OkStatus();
}

}  // namespace
}  // namespace byteps

bps_status* bps_timeline_start(bps_session* session, const char* path, uint32_t flags) noexcept {
  return byteps::Boundary("bps_timeline_start", [&]() -> absl::Status {
    RETURN_IF_ERROR(byteps::CheckNotNull(session, "session"));
    RETURN_IF_ERROR(byteps::CheckText(path, "path"));
    if ((flags & ~BPS_TIMELINE_MARK_STEPS) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("flags are ", flags, ", more than BPS_TIMELINE_MARK_STEPS"));
    }
    return session->session->StartTimeline(path, (flags & BPS_TIMELINE_MARK_STEPS) != 0);
  });
}

bps_status* bps_timeline_stop(bps_session* session) noexcept {
  return byteps::Boundary("bps_timeline_stop", [&]() -> absl::Status {
    RETURN_IF_ERROR(byteps::CheckNotNull(session, "session"));
    return session->session->StopTimeline();
  });
}

bps_status* bps_timeline_mark(bps_session* session, const char* name, int32_t kind) noexcept {
  return byteps::Boundary("bps_timeline_mark", [&]() -> absl::Status {
    RETURN_IF_ERROR(byteps::CheckNotNull(session, "session"));
    if (kind < BPS_TIMELINE_MOMENT || kind > BPS_TIMELINE_END) {
      return absl::InvalidArgumentError(absl::StrCat("kind is ", kind, ", no BPS_TIMELINE_..."));
    }
    if (kind == BPS_TIMELINE_END) return session->session->Mark(byteps::TimelineEvent::kSpanEnd, "");
    RETURN_IF_ERROR(byteps::CheckText(name, "name"));
    return session->session->Mark(
        kind == BPS_TIMELINE_BEGIN ? byteps::TimelineEvent::kSpanBegin : byteps::TimelineEvent::kMoment, name);
  });
}
