// groups_report.h - the groups that a reduction would have with this configuration.
//
//     absl::StatusOr<std::string> text = GroupsReport(config);      // of bps_info
//
// The coordinator's own rules (server/membership/membership.h), asked as if every host had as many workers as this one.
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_GROUPS_REPORT_H_
#define BYTEPS_TOOLS_GROUPS_REPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "core/config/config.h"

namespace byteps {

// A few lines. An error names what BYTEPS_GROUPS could be.
absl::StatusOr<std::string> GroupsReport(const Config& config);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_GROUPS_REPORT_H_
