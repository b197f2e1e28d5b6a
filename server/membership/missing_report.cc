#include "server/membership/missing_report.h"

#include "core/base/time_text.h"
#include "server/membership/membership.h"

namespace byteps {

std::vector<std::string> MissingMembers(const JobSession* session, const ServersPresent& servers) {
  std::vector<std::string> missing;
  if (session != nullptr) missing = session->Missing();
  const auto present = static_cast<int32_t>(servers.present);
  if (present < servers.expected) {
    missing.push_back(std::to_string(servers.expected - present) + " of " + std::to_string(servers.expected) +
                      (servers.expected == 1 ? " server" : " servers"));
    for (const std::string& gone : servers.gone) missing.push_back("(" + gone + ")");
  }
  if (!missing.empty() && !servers.no_room.empty()) {
    missing.push_back("(a member was refused: " + servers.no_room + ")");
  }
  return missing;
}

absl::Status StartTimeoutError(const StartReport& report) {
  std::string missing;
  if (!report.gathering) missing = "all workers";
  for (const std::string& each : report.missing) missing += (missing.empty() ? "" : ", ") + each;
  std::string there;
  for (size_t i = 0; i < report.members.size() && i < kMaxMissing; ++i) {
    there += (there.empty() ? "; there are " : ", ") + report.members[i];
  }
  if (report.members.size() > kMaxMissing) {
    there += " and " + std::to_string(report.members.size() - kMaxMissing) + " more";
  }
  for (const std::string& each : report.refused) there += "; it has refused: " + each;
  return absl::DeadlineExceededError(
      "no session has started within " + SecondsText(WholeSeconds(report.waited)) + ": missing are " + missing + there +
      (report.failed_start.empty() ? "" : "; the last start failed: " + report.failed_start) +
      ". Do they know this address (DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT), and the job (BYTEPS_JOB_ID)? " +
      (report.gathering || report.several_hosts
           ? ""
           : "(The worker of a single host comes only where BYTEPS_FORCE_DISTRIBUTED=1 is set for it, too.) ") +
      "BYTEPS_START_TIMEOUT says how long they are waited for");
}

}  // namespace byteps
