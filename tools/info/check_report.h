// check_report.h - bps_info --check: a push_pull over every transport that can be used here, a line each.
//
//     std::vector<CheckResult> results;
//     const bool good = ReportCheck(config, transports, options, std::cout, &results);
//
// Threads: one at a time.
#ifndef BYTEPS_TOOLS_INFO_CHECK_REPORT_H_
#define BYTEPS_TOOLS_INFO_CHECK_REPORT_H_

#include <ostream>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/plugin/plugin_registry.h"
#include "tools/info/loopback_check.h"

namespace byteps {

enum class CheckOutcome { kOk, kUnusable, kError };
const char* CheckOutcomeName(CheckOutcome outcome);

struct CheckResult {
  std::string name;  // of a transport, "local", or "all": none could be tried
  CheckOutcome outcome = CheckOutcome::kError;
  LoopbackTimes times;  // kOk
  std::string why;      // otherwise
};

// Prints each line as soon as it is known, and appends what it says to `results`. True if all that can be used here
// works. `options`: library and server are found if they are not named.
bool ReportCheck(const Config& config, const std::vector<PluginListing>& transports, LoopbackOptions options,
                 std::ostream& out, std::vector<CheckResult>* results);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_CHECK_REPORT_H_
