// json_report.h - what bps_info says, for programs (--json).
//
//     std::cout << JsonReport(config, plugins, groups, {.all = false, .usable = true}) << "\n";
//
// One object in one line; docs/tools.md names its members. Members may be added, none changes its meaning.
//
// Threads: one at a time.
#ifndef BYTEPS_TOOLS_INFO_JSON_REPORT_H_
#define BYTEPS_TOOLS_INFO_JSON_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/config.h"
#include "tools/info/check_report.h"
#include "tools/info/plugins_report.h"

namespace byteps {

struct JsonReportOptions {
  bool all = false;                                 // also the variables that this release does not act on
  bool usable = false;                              // the verdict: exit status 0
  const std::vector<CheckResult>* check = nullptr;  // of --check
};

std::string JsonReport(const Config& config, const PluginsReport& plugins, const absl::StatusOr<std::string>& groups,
                       const JsonReportOptions& options);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_JSON_REPORT_H_
