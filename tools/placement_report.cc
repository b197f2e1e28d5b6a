#include "tools/placement_report.h"

#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>
#include <vector>

#include "server/key_hash.h"
#include "server/placement.h"
#include "server/server_weights.h"

namespace byteps {
namespace {

constexpr uint32_t kElementBytes = 4;  // float32
constexpr uint32_t kMostHosts = 4096;
// BytePS's, where nothing is said: the number a server takes by itself depends on its cores.
constexpr uint32_t kLanes = 4;

ServerShares Shares(const PlacementRequest& request) {
  std::vector<control::Host> hosts(request.workers + request.servers);
  std::vector<const control::Host*> workers, servers;
  for (uint32_t i = 0; i < request.workers; ++i) {
    hosts[i].set_id("worker " + std::to_string(i));
    workers.push_back(&hosts[i]);
  }
  for (uint32_t i = 0; i < request.servers; ++i) {
    control::Host& host = hosts[request.workers + i];
    host.set_id((i < request.colocated ? "worker " : "server ") + std::to_string(i));
    servers.push_back(&host);
  }
  return SharesOf(workers, servers);
}

// Shares of each server; they sum to one.
std::vector<double> Fractions(const std::vector<double>& weights, size_t servers) {
  if (weights.empty()) return std::vector<double>(servers, 1.0 / static_cast<double>(servers));
  double sum = 0;
  for (const double weight : weights) sum += weight;
  std::vector<double> fractions;
  for (const double weight : weights) fractions.push_back(weight / sum);
  return fractions;
}

std::string Tensors(const ModelFile& model, const std::vector<Placed>& placed, uint32_t servers) {
  std::ostringstream out;
  for (size_t i = 0; i < placed.size(); ++i) {
    std::vector<uint64_t> parts(servers);
    uint64_t count = 0;
    for (const PartRun& run : placed[i].runs) {
      parts[run.place.server] += run.parts;
      count += run.parts;
    }
    const ModelTensor& tensor = model.tensors[i];
    out << "  " << tensor.name << " " << tensor.shape << ": " << tensor.elements * kElementBytes << " bytes, "
        << (count == 1 ? "1 part" : std::to_string(count) + " parts") << ", on";
    for (uint32_t server = 0; server < servers; ++server) {
      if (parts[server] == 0) continue;
      out << " " << server;
      if (parts[server] > 1) out << " (" << parts[server] << ")";
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace

absl::StatusOr<std::string> PlacementReport(const ModelFile& model, const PlacementRequest& request,
                                            const Config& config) {
  if (request.servers < 1 || request.servers > kMostHosts || request.workers < 1 || request.workers > kMostHosts) {
    return absl::InvalidArgumentError("--servers and --workers are between 1 and " + std::to_string(kMostHosts));
  }
  if (request.colocated > std::min(request.servers, request.workers)) {
    return absl::InvalidArgumentError("--colocate " + std::to_string(request.colocated) + ": of " +
                                      std::to_string(request.servers) + " servers and " +
                                      std::to_string(request.workers) + " worker hosts no more than " +
                                      std::to_string(std::min(request.servers, request.workers)) + " can be together");
  }
  const ServerShares shares = Shares(request);
  PlacementOptions options;
  options.slot_bytes = static_cast<uint64_t>(config.GetInt("BYTEPS_SLOT_BYTES"));
  if (config.Has("BYTEPS_PARTITION_BYTES")) {
    options.partition_bytes = static_cast<uint64_t>(config.GetInt("BYTEPS_PARTITION_BYTES"));
  }
  options.lanes.assign(request.servers, config.Has("BYTEPS_SERVER_ENGINE_THREAD")
                                            ? static_cast<uint32_t>(config.GetInt("BYTEPS_SERVER_ENGINE_THREAD"))
                                            : kLanes);
  if (config.GetString("BYTEPS_ENABLE_MIXED_MODE") != "off") options.weights = shares.weights;
  options.hash = ReadKeyHash(config);
  options.hash.dedicated = shares.dedicated;
  const std::vector<double> fractions = Fractions(options.weights, request.servers);
  const uint32_t lanes = options.lanes.front();
  const KeyHash::Function hash = options.hash.function;

  Placement placement(std::move(options));
  std::vector<Placed> placed;
  std::vector<uint64_t> parts(request.servers);
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    absl::StatusOr<Placed> each = placement.Add(model.tensors[i].elements, kElementBytes, std::nullopt, i);
    if (!each.ok()) {
      return absl::Status(each.status().code(), model.tensors[i].name + ": " + std::string(each.status().message()));
    }
    for (const PartRun& run : each->runs) parts[run.place.server] += run.parts;
    placed.push_back(*std::move(each));
  }

  const auto total = static_cast<double>(model.elements() * kElementBytes);
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  out << model.source << "\n"
      << model.tensors.size() << " tensors of float32, " << total / 1e6 << " MB; " << request.workers
      << " worker hosts, " << request.servers << " servers with " << lanes << " lanes";
  if (hash != KeyHash::Function::kNone) out << "; placed by BYTEPS_KEY_HASH_FN=" << KeyHashName(hash);
  out << "\n";
  if (request.colocated > 0 && !shares.obstacle.empty())
    out << "Every server gets the same: " << shares.obstacle << "\n";
  double worst = 0;
  for (uint32_t server = 0; server < request.servers; ++server) {
    const auto bytes = static_cast<double>(placement.bytes(server));
    const double share = fractions[server] * total;
    out << "  server " << server;
    if (server < request.colocated) out << " (on worker host " << server << ")";
    out << ": " << bytes / 1e6 << " MB in " << parts[server] << " parts, " << 100 * bytes / total << "%; its share is "
        << 100 * fractions[server] << "%\n";
    if (share > 0) worst = std::max(worst, bytes / share - 1);
  }
  out << "At most " << 100 * worst << "% over a share.\n" << Tensors(model, placed, request.servers);
  return out.str();
}

}  // namespace byteps
