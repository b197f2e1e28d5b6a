#include "core/worker/servers/slow_servers.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace byteps {

void SlowServers::Add(uint32_t server, Time took) {
  Sum& sum = sums_[server];
  ++sum.partitions;
  sum.time += took;
}

std::optional<SlowServers::Finding> SlowServers::Check(Time now) {
  if (!window_.has_value()) window_ = now;
  if (now - *window_ < kWindow || sums_.size() < 2) return std::nullopt;
  std::vector<std::pair<Time, uint32_t>> means;
  for (const auto& [server, sum] : sums_) {
    means.emplace_back(sum.time / static_cast<Time>(sum.partitions), server);
  }
  std::sort(means.begin(), means.end());
  if (sums_[means.back().second].partitions < kLeastPartitions) {
    window_ = now - kWindow + kSecond;  // look again in a second
    return std::nullopt;
  }
  window_ = now;
  sums_.clear();
  const auto [mean, server] = means.back();
  means.pop_back();
  const Time others = means[means.size() / 2].first;
  if (mean < kTimesSuspect * others || mean - others < kLongerBy) {
    evidence_ = 0;
    return std::nullopt;
  }
  evidence_ = (server == suspect_ ? evidence_ : 0) + (mean < kTimesLonger * others ? 1 : 2);
  suspect_ = server;
  if (evidence_ < 2 * kWindows) return std::nullopt;
  const auto named = named_.find(server);
  if (named != named_.end() && now - named->second < kSilence) return std::nullopt;
  named_[server] = now;
  return Finding{server, mean, others};
}

}  // namespace byteps
