#include "server/membership/placement.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace byteps {
namespace {

// Parts begin at multiples of this many elements where no other size was asked for: aligned for vectors.
constexpr uint64_t kGranule = 64;

uint64_t CeilDiv(uint64_t value, uint64_t by) { return value / by + (value % by != 0 ? 1 : 0); }

}  // namespace

Placement::Placement(PlacementOptions options)
    : options_(std::move(options)), bytes_(options_.lanes.size()), loads_(options_.lanes.size()) {
  options_.weights.resize(options_.lanes.size(), options_.weights.empty() ? 1.0 : 0.0);
  const bool any = std::any_of(options_.weights.begin(), options_.weights.end(), [](double w) { return w > 0; });
  for (uint32_t server = 0; server < options_.lanes.size(); ++server) {
    if (!any) options_.weights[server] = 1.0;
    lanes_.emplace_back(options_.lanes[server], 0);
    total_lanes_ += options_.lanes[server];
    if (options_.weights[server] > 0) order_.insert({0.0, server});
  }
}

uint64_t Placement::PartElements(uint64_t elements, uint32_t element_bytes) const {
  if (options_.partition_bytes != 0) {
    return std::max<uint64_t>(1, std::min(options_.partition_bytes, options_.slot_bytes) / element_bytes);
  }
  const uint64_t most = std::max<uint64_t>(1, std::min(kLargestPart, options_.slot_bytes) / element_bytes);
  const uint64_t least = std::min<uint64_t>(most, kLeastFirst / element_bytes);
  const uint64_t share = std::max(CeilDiv(elements, options_.owners), kLeastShare / element_bytes);
  const uint64_t spread = std::clamp(std::min(CeilDiv(elements, total_lanes_), share), least, most);
  // As many parts of that size as there must be, and as many for each lane as for any other; then all of one size.
  uint64_t parts = std::max<uint64_t>(1, CeilDiv(elements, spread));
  if (parts > total_lanes_ && elements >= parts * kGranule) parts = CeilDiv(parts, total_lanes_) * total_lanes_;
  const uint64_t even = std::max<uint64_t>(1, CeilDiv(elements, parts));
  return std::min(CeilDiv(even, kGranule) * kGranule, most);
}

LanePlace Placement::Choose(uint64_t name, uint64_t part) const {
  const uint32_t server = options_.hash.function == KeyHash::Function::kNone
                              ? order_.begin()->second
                              : options_.hash.Server(KeyHash::Key(name, part), static_cast<uint32_t>(lanes_.size()));
  const std::vector<uint64_t>& lanes = lanes_[server];
  const auto lane = std::min_element(lanes.begin(), lanes.end());
  return {server, static_cast<uint32_t>(lane - lanes.begin())};
}

void Placement::Load(LanePlace place, uint64_t bytes) {
  const uint64_t cost = bytes + kPartCost;
  bytes_[place.server] += bytes;
  lanes_[place.server][place.lane] += cost;
  const double weight = options_.weights[place.server];
  if (weight <= 0) return;
  double& load = loads_[place.server];
  order_.erase({load, place.server});
  load += static_cast<double>(cost) / weight;
  order_.insert({load, place.server});
}

void Placement::Unload(LanePlace place, uint64_t bytes) {
  const uint64_t cost = bytes + kPartCost;
  bytes_[place.server] -= bytes;
  lanes_[place.server][place.lane] -= cost;
  const double weight = options_.weights[place.server];
  if (weight <= 0) return;
  double& load = loads_[place.server];
  order_.erase({load, place.server});
  load = std::max(0.0, load - static_cast<double>(cost) / weight);
  order_.insert({load, place.server});
}

// See "The cut again".
uint64_t Placement::BestPartElements(uint64_t elements, uint32_t element_bytes, uint64_t bytes_per_second) const {
  const uint64_t servers = options_.lanes.size();
  const uint64_t most = std::max<uint64_t>(1, std::min(kLargestPart, options_.slot_bytes) / element_bytes);
  const uint64_t least = std::min<uint64_t>(most, kLeastPart / element_bytes);
  const double bytes = static_cast<double>(elements) * element_bytes;
  const double best =
      std::sqrt(bytes * static_cast<double>(bytes_per_second) * kPartTime / static_cast<double>(2 * servers));
  const auto size = static_cast<uint64_t>(std::min(best, static_cast<double>(kLargestPart)));
  const uint64_t wanted =
      std::clamp<uint64_t>(size / element_bytes, least, std::min(most, PartElements(elements, element_bytes)));
  uint64_t parts = std::max<uint64_t>(1, CeilDiv(elements, wanted));
  // As many for each lane as for any other, or at least for each server; rounded down where they would become much
  // smaller than is worth a message.
  const auto even = [&](uint64_t row) { return CeilDiv(parts, row) * row; };
  const auto worth = [&](uint64_t count) { return elements / count >= least - least / 16; };
  if (parts > total_lanes_ && worth(even(total_lanes_))) {
    parts = even(total_lanes_);
  } else if (parts > servers) {
    parts = worth(even(servers)) ? even(servers) : elements / least / servers * servers;
  }
  return std::min(CeilDiv(CeilDiv(elements, parts), kGranule) * kGranule, most);
}

Placed Placement::Recut(const Placed& old, uint64_t elements, uint32_t element_bytes, uint64_t bytes_per_second,
                        uint64_t name) {
  if (!adapts() || bytes_per_second == 0 || elements == 0) return old;
  const uint64_t best = BestPartElements(elements, element_bytes, bytes_per_second);
  // Rates are never twice the same; a cut that is good enough stays.
  const double ratio = static_cast<double>(best) / static_cast<double>(old.part_elements);
  if ((ratio > 0.7 && ratio < 1.4) || CeilDiv(elements, best) > kMaxParts) return old;
  uint64_t left = elements;
  for (const PartRun& run : old.runs) {
    for (uint32_t part = 0; part < run.parts; ++part) {
      const uint64_t taken = std::min(left, old.part_elements);
      left -= taken;
      Unload(run.place, taken * element_bytes);
    }
  }
  return Place(elements, element_bytes, best, old.home(), name);
}

absl::StatusOr<Placed> Placement::Add(uint64_t elements, uint32_t element_bytes, std::optional<LanePlace> home,
                                      uint64_t name) {
  if (lanes_.empty()) {
    // Without servers a tensor needs its key alone.
    Placed placed;
    placed.part_elements = std::max<uint64_t>(1, elements);
    placed.runs = {{1, {}}};
    return placed;
  }
  const uint64_t part_elements = PartElements(elements, element_bytes);
  const uint64_t parts = std::max<uint64_t>(1, CeilDiv(elements, part_elements));
  if (parts > kMaxParts) {
    return absl::ResourceExhaustedError("it would be cut into " + std::to_string(parts) + " parts of " +
                                        std::to_string(part_elements * element_bytes) + " bytes; at most " +
                                        std::to_string(kMaxParts) +
                                        " are possible: raise BYTEPS_PARTITION_BYTES and BYTEPS_SLOT_BYTES");
  }
  return Place(elements, element_bytes, part_elements, home, name);
}

Placed Placement::Place(uint64_t elements, uint32_t element_bytes, uint64_t part_elements,
                        std::optional<LanePlace> home, uint64_t name) {
  Placed placed;
  placed.part_elements = part_elements;
  const uint64_t parts = std::max<uint64_t>(1, CeilDiv(elements, part_elements));
  uint64_t left = elements;
  for (uint64_t part = 0; part < parts; ++part) {
    const LanePlace place = part == 0 && home.has_value() ? *home : Choose(name, part);
    const uint64_t taken = std::min(left, placed.part_elements);
    left -= taken;
    Load(place, taken * element_bytes);
    if (!placed.runs.empty() && placed.runs.back().place == place) {
      ++placed.runs.back().parts;
    } else {
      placed.runs.push_back({1, place});
    }
  }
  return placed;
}

}  // namespace byteps
