#include "tools/paths_report.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/collectives/path_costs.h"
#include "server/membership/server_weights.h"

namespace byteps {
namespace {

constexpr uint32_t kMostHosts = 4096;
// Of what a link carries, with packets of 1500 bytes (Ethernet, IPv4, TCP with timestamps).
constexpr double kPayloadShare = 1448.0 / 1514;
constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllReduce,     CollectiveKind::kBroadcast, CollectiveKind::kAllGather,
    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,  CollectiveKind::kReduce,
    CollectiveKind::kGather,        CollectiveKind::kScatter,   CollectiveKind::kSend};
constexpr std::pair<uint64_t, const char*> kSizes[] = {
    {1 << 10, "1 KiB"}, {64 << 10, "64 KiB"}, {1 << 20, "1 MiB"}, {64 << 20, "64 MiB"}};

absl::Status Check(const PathsRequest& request) {
  for (const uint32_t count : {request.workers, request.local, request.servers}) {
    if (count > kMostHosts) return absl::InvalidArgumentError("at most " + std::to_string(kMostHosts) + " of each");
  }
  if (request.workers == 0 || request.local == 0) return absl::InvalidArgumentError("a job needs a worker");
  if (request.colocated > request.servers) return absl::InvalidArgumentError("--colocate is more than --servers");
  if (request.workers > 1 && request.servers == 0) {
    return absl::InvalidArgumentError("several worker hosts need a server");
  }
  return absl::OkStatus();
}

// As the coordinator gives them, where each worker host has a server and there are more.
std::vector<double> Shares(const PathsRequest& request) {
  const uint32_t dedicated = request.servers - request.colocated;
  std::vector<double> shares(request.servers, 1);
  if (request.colocated == request.workers && dedicated > 0) {
    const OptimalWeights optimum = OptimumOf(request.workers, dedicated);
    for (uint32_t i = 0; i < request.servers; ++i) {
      shares[i] = i < request.colocated ? optimum.colocated : optimum.dedicated;
    }
  }
  double sum = 0;
  for (const double share : shares) sum += share;
  for (double& share : shares) share /= sum;
  return shares;
}

std::string Megabytes(double bytes) {
  std::ostringstream out;
  if (bytes < 1e6) {
    out << std::fixed << std::setprecision(1) << bytes / 1e3 << " kB";
  } else {
    out << std::fixed << std::setprecision(1) << bytes / 1e6 << " MB";
  }
  return out.str();
}

std::string Microseconds(double seconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(0) << seconds * 1e6 << " us";
  return out.str();
}

// The least size from which on, up to 16 GiB, a kind goes by peers; 0: none.
std::string Borders(const PathCosts& costs, CollectiveKind kind) {
  std::string text;
  CollectivePath last = costs.Choose(kind, 0);
  uint64_t from = 0;
  const auto add = [&](const std::string& until) {
    text += (text.empty() ? "" : ", ") + std::string(PathName(last)) + " " +
            (from == 0 && until.empty() ? "for all sizes"
             : until.empty()            ? "from " + std::to_string(from) + " bytes"
                                        : "up to " + until + " bytes");
  };
  for (uint64_t bytes = 1; bytes <= uint64_t{16} << 30;) {
    const CollectivePath now = costs.Choose(kind, bytes);
    if (now != last) {
      // Between the size before and this one.
      uint64_t low = from, high = bytes;
      while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        (costs.Choose(kind, middle) == now ? high : low) = middle;
      }
      add(std::to_string(high - 1));
      last = now;
      from = high;
    }
    bytes += std::max<uint64_t>(1, bytes / 64);
  }
  add("");
  return text;
}

}  // namespace

absl::StatusOr<std::string> PathsReport(const PathsRequest& request, const Config& config) {
  if (absl::Status status = Check(request); !status.ok()) return status;
  JobLinks links = JobLinks::Uniform(request.workers, request.local, request.servers, request.colocated);
  links.shares = Shares(request);
  const std::string& rule = config.GetString("BYTEPS_COLLECTIVE_PATH");
  links.rule = rule == "peers" ? PathRule::kPeers : rule == "servers" ? PathRule::kServers : PathRule::kAuto;
  if (links.rule == PathRule::kAuto && config.GetBool("BYTEPS_FORCE_DISTRIBUTED")) links.rule = PathRule::kServers;
  const PathCosts costs(std::move(links));
  const double rate = request.link_rate / 8 * kPayloadShare;

  std::ostringstream out;
  out << request.workers << " worker hosts of " << request.local << ", " << request.servers << " servers ("
      << request.colocated << " on worker hosts), links of " << request.link_rate / 1e9 << " Gbit/s\n"
      << "A star is the way that is taken (BYTEPS_COLLECTIVE_PATH=" << rule
      << "). bytes: of one rank's input; busiest:\n"
      << "what the busiest link carries in one direction.\n\n"
      << "operation       bytes   way       steps  messages      busiest         time\n";
  for (const CollectiveKind kind : kKinds) {
    for (const auto& [bytes, size] : kSizes) {
      const CollectivePath chosen = costs.Choose(kind, bytes);
      for (const CollectivePath way : costs.Ways(kind)) {
        const PathCost cost = costs.Cost(way, kind, bytes);
        out << std::left << std::setw(15) << KindName(kind) << std::right << std::setw(7) << size << "  "
            << (way == chosen ? "*" : " ") << std::left << std::setw(8) << PathName(way) << std::right << std::setw(6)
            << cost.steps + cost.local_steps << std::setw(10) << cost.messages << std::setw(13)
            << Megabytes(cost.busiest) << std::setw(13) << Microseconds(cost.Seconds(rate)) << "\n";
      }
    }
  }
  out << "\nall_reduce: " << Borders(costs, CollectiveKind::kAllReduce)
      << "\nbroadcast:  " << Borders(costs, CollectiveKind::kBroadcast)
      << "\n\nDecisions are made for links of 10 Gbit/s, so that all ranks make the same.\n";
  return out.str();
}

}  // namespace byteps
