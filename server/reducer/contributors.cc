#include "server/reducer/contributors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace byteps {

Contributors::Contributors(uint32_t workers, std::vector<uint32_t> groups) : groups_(std::move(groups)) {
  for (uint32_t rank = 0; rank < workers; ++rank) Add(1);
}

void Contributors::Add(uint32_t workers) {
  of_.insert(of_.end(), workers, count());
  first_.push_back(first_.back() + workers);
  joint_ |= workers > 1;
}

absl::StatusOr<Contributors> Contributors::Make(const control::Epoch& epoch) {
  const auto workers = static_cast<uint64_t>(epoch.workers_size());
  const auto covers = [workers](const auto& sizes) {
    uint64_t sum = 0;
    for (const uint32_t size : sizes) sum += size;
    return sizes.empty() || (sum == workers && std::count(sizes.begin(), sizes.end(), 0u) == 0);
  };
  if (workers == 0 || !covers(epoch.group_sizes()) || !covers(epoch.local_sizes())) {
    return absl::InternalError(absl::StrCat("session ", epoch.session_id(), " has ", workers, " workers in ",
                                            epoch.group_sizes_size(), " groups and ", epoch.local_sizes_size(),
                                            " local sets that do not cover them"));
  }
  if (epoch.local_sizes().empty()) {
    return Contributors(static_cast<uint32_t>(workers), {epoch.group_sizes().begin(), epoch.group_sizes().end()});
  }
  if (!std::equal(epoch.local_sizes().begin(), epoch.local_sizes().end(), epoch.group_sizes().begin(),
                  epoch.group_sizes().end())) {
    return absl::InternalError(
        absl::StrCat("session ", epoch.session_id(), ": the workers that reduce among themselves are not its groups"));
  }
  Contributors contributors(0);
  for (const uint32_t size : epoch.local_sizes()) contributors.Add(size);
  return contributors;
}

}  // namespace byteps
