#include "tools/placement_report.h"

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "core/control/control.pb.h"
#include "server/membership/key_hash.h"
#include "server/membership/placement.h"
#include "server/membership/server_weights.h"
#include "server/membership/tensor_directory.h"

namespace byteps {
namespace {

constexpr uint32_t kElementBytes = 4;  // float32
constexpr uint32_t kMostHosts = 4096;
// BytePS's, where nothing is said: the number a server takes by itself depends on its cores.
constexpr uint32_t kLanes = 4;
// Of what a link carries, with packets of 1500 bytes (Ethernet, IPv4, TCP with timestamps).
constexpr double kPayloadShare = 1448.0 / 1514;

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

// A model as the coordinator of one job would place it.
class PlacedModel {
 public:
  PlacedModel(const ModelFile& model, PlacementOptions options)
      : model_(model), servers_(options.lanes.size()), directory_(std::move(options)) {}

  absl::Status Declare() {
    for (const ModelTensor& tensor : model_.tensors) {
      control::TensorSpec spec;
      spec.set_name(tensor.name);
      spec.set_dtype(BPS_FLOAT32);
      spec.add_shape(static_cast<int64_t>(tensor.elements));
      cuts_.push_back(directory_.Declare(spec));
      if (cuts_.back().code() != BPS_OK) return absl::InvalidArgumentError(cuts_.back().error());
    }
    return absl::OkStatus();
  }

  // As at the second round, when results have come home at this rate.
  void CutAgain(double bytes_per_second) {
    for (control::Assignment& cut : cuts_) {
      if (cut.next_cut() == 0) continue;
      control::TensorSpec spec = cut.tensor();
      spec.set_from_round(cut.next_cut());
      spec.set_bytes_per_second(static_cast<uint64_t>(std::clamp(bytes_per_second, 1.0, 1e12)));
      cut = directory_.Declare(spec);
    }
  }

  bool adapts() const {
    return std::any_of(cuts_.begin(), cuts_.end(), [](const auto& cut) { return cut.next_cut() != 0; });
  }

  // Of each server.
  std::vector<uint64_t> Bytes() const { return Sums(true); }
  std::vector<uint64_t> Parts() const { return Sums(false); }

  std::string Tensors() const {
    std::ostringstream out;
    for (size_t i = 0; i < cuts_.size(); ++i) {
      std::vector<uint64_t> parts(servers_);
      uint64_t count = 0;
      for (const control::Assignment::Run& run : cuts_[i].runs()) {
        parts[run.server()] += run.parts();
        count += run.parts();
      }
      const ModelTensor& tensor = model_.tensors[i];
      out << "  " << tensor.name << " " << tensor.shape << ": " << tensor.elements * kElementBytes << " bytes, ";
      if (count == 1) {
        out << "1 part, on";
      } else {
        out << count << " parts of " << cuts_[i].part_elements() * kElementBytes << " bytes, on";
      }
      for (uint32_t server = 0; server < servers_; ++server) {
        if (parts[server] == 0) continue;
        out << " " << server;
        if (parts[server] > 1) out << " (" << parts[server] << ")";
      }
      out << "\n";
    }
    return out.str();
  }

 private:
  std::vector<uint64_t> Sums(bool bytes) const {
    std::vector<uint64_t> sums(servers_);
    for (size_t i = 0; i < cuts_.size(); ++i) {
      uint64_t left = model_.tensors[i].elements;
      for (const control::Assignment::Run& run : cuts_[i].runs()) {
        const uint64_t taken = std::min(left, run.parts() * cuts_[i].part_elements());
        left -= taken;
        sums[run.server()] += bytes ? taken * kElementBytes : run.parts();
      }
    }
    return sums;
  }

  const ModelFile& model_;
  size_t servers_;
  TensorDirectory directory_;
  std::vector<control::Assignment> cuts_;
};

// How often the bytes of all tensors cross the busiest link, each way: the host of a worker sends what its own server
// does not hold, and the results of what that holds to the others; a dedicated server sends its results to all.
double Crossings(const PlacementRequest& request, const std::vector<double>& shares) {
  const auto workers = static_cast<double>(request.workers);
  double most = request.colocated < request.workers ? 1 : 0;
  for (uint32_t server = 0; server < request.servers; ++server) {
    const double share = shares[server];
    most = std::max(most, server < request.colocated ? 1 - share + share * (workers - 1) : share * workers);
  }
  return most;
}

}  // namespace

absl::StatusOr<double> ParseLinkRate(const std::string& text) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const std::string unit(read.ptr, text.data() + text.size());
  const double factor = unit == "kbit" ? 1e3 : unit == "mbit" ? 1e6 : unit == "gbit" ? 1e9 : 0;
  if (read.ec != std::errc() || factor == 0 || !(number > 0) || number > 1e6) {
    return absl::InvalidArgumentError("\"" + text + "\" is no rate: a number and kbit, mbit or gbit, such as 200mbit");
  }
  return number * factor;
}

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
  options.at_home = shares.at_home;
  if (config.GetString("BYTEPS_ENABLE_MIXED_MODE") != "off") options.weights = shares.weights;
  options.hash = ReadKeyHash(config);
  if (shares.obstacle.empty()) options.hash.dedicated = shares.dedicated;
  const std::vector<double> fractions = Fractions(options.weights, request.servers);
  const bool optimum = !options.weights.empty();
  const uint32_t lanes = options.lanes.front();
  const KeyHash::Function hash = options.hash.function;
  const bool hashed = hash != KeyHash::Function::kNone;

  PlacedModel placed(model, std::move(options));
  if (absl::Status status = placed.Declare(); !status.ok()) return status;
  const auto total = static_cast<double>(model.elements() * kElementBytes);
  std::ostringstream cut;
  cut << std::fixed << std::setprecision(1);
  if (!placed.adapts()) {
    cut << "The cut of all rounds";
    if (config.Has("BYTEPS_PARTITION_BYTES")) cut << ", at most BYTEPS_PARTITION_BYTES for a part";
    cut << ":\n";
  } else if (request.link_rate > 0) {
    const std::vector<uint64_t> first = placed.Bytes();
    std::vector<double> held = fractions;
    if (hashed)
      std::transform(first.begin(), first.end(), held.begin(),
                     [&](uint64_t each) { return static_cast<double>(each) / total; });
    const double crossings = Crossings(request, held);
    const double rate = request.link_rate / 8 * kPayloadShare / std::max(crossings, 1e-9);
    cut << "The cut from the second round on, where ";
    if (crossings > 0) {
      cut << "full links bring results home at " << rate / 1e6 << " MB/s (they carry each byte " << std::setprecision(2)
          << crossings << " times):\n";
    } else {
      cut << "nothing crosses a link:\n";
    }
    placed.CutAgain(rate);
  } else {
    cut << "The first cut, which knows no links (--rate 10gbit: the one from the second round on, where all have "
           "such):\n";
  }

  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  out << model.source << "\n"
      << model.tensors.size() << " tensors of float32, " << total / 1e6 << " MB; " << request.workers
      << " worker hosts, " << request.servers << " servers with " << lanes << " lanes";
  if (!config.Has("BYTEPS_SERVER_ENGINE_THREAD")) out << " (unset, BYTEPS_SERVER_ENGINE_THREAD goes by a host's cores)";
  if (hashed) out << "; placed by BYTEPS_KEY_HASH_FN=" << KeyHashName(hash);
  out << "\n";
  if (request.colocated > 0 && !shares.obstacle.empty()) {
    out << (hashed ? "There is no optimum: " : "Every server gets the same: ") << shares.obstacle << "\n";
  }
  out << cut.str();
  // A hash knows no sizes, and nothing gives a server its share.
  const char* share_is = !hashed ? "its share is " : optimum ? "the optimum would be " : "an even share would be ";
  const std::vector<uint64_t> bytes = placed.Bytes(), parts = placed.Parts();
  double worst = 0;
  for (uint32_t server = 0; server < request.servers; ++server) {
    const auto held = static_cast<double>(bytes[server]);
    const double share = fractions[server] * total;
    out << "  server " << server;
    if (server < request.colocated) out << " (on worker host " << server << ")";
    out << ": " << held / 1e6 << " MB in " << parts[server] << " parts, " << 100 * held / total << "%; " << share_is
        << 100 * fractions[server] << "%\n";
    if (share > 0) worst = std::max(worst, held / share - 1);
  }
  out << "At most " << 100 * worst << "% over "
      << (!hashed   ? "a share"
          : optimum ? "the optimum"
                    : "an even share")
      << ".\n"
      << placed.Tensors();
  return out.str();
}

}  // namespace byteps
