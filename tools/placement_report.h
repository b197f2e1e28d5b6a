// placement_report.h - who gets what of a network, as the coordinator would place it.
//
//     absl::StatusOr<std::string> text = PlacementReport(model, request, config);      // bps_info --placement
//
// The same TensorDirectory, the same shares and the same order of declaration as in a job whose configuration this is:
// the first cut, which knows nothing of links; with a rate the one that the job has from its second round on.
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_PLACEMENT_REPORT_H_
#define BYTEPS_TOOLS_PLACEMENT_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/config/config.h"
#include "tools/model_file.h"

namespace byteps {

struct PlacementRequest {
  uint32_t servers = 4;    // all of them
  uint32_t workers = 4;    // worker hosts
  uint32_t colocated = 0;  // servers that share the host of a worker, one each; the others have hosts of their own
  double link_rate = 0;    // bits per second of every host's link, each way; 0: the first cut
};

// Bits per second of "200mbit", "1.5gbit"; INVALID_ARGUMENT if it is none.
absl::StatusOr<double> ParseLinkRate(const std::string& text);

// INVALID_ARGUMENT: what is asked cannot be.
absl::StatusOr<std::string> PlacementReport(const ModelFile& model, const PlacementRequest& request,
                                            const Config& config);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_PLACEMENT_REPORT_H_
