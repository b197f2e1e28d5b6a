// paths_report.h - which way the collectives of a job go, and what each way costs: bps_info --paths.
//
//     absl::StatusOr<std::string> text = PathsReport({.workers = 8, .servers = 2}, config);
//
// The same PathCosts by which the library decides.
//
// Threads: a free function without state.
#ifndef BYTEPS_TOOLS_PATHS_REPORT_H_
#define BYTEPS_TOOLS_PATHS_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/config/config.h"

namespace byteps {

struct PathsRequest {
  uint32_t workers = 4;     // hosts
  uint32_t local = 1;       // workers of each
  uint32_t servers = 4;     // all of them
  uint32_t colocated = 0;   // servers that share the host of a worker
  double link_rate = 10e9;  // bits per second of every host's link, each way
};

// INVALID_ARGUMENT: the request makes no sense.
absl::StatusOr<std::string> PathsReport(const PathsRequest& request, const Config& config);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_PATHS_REPORT_H_
