#include "tools/groups_report.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/group_ranges.h"
#include "core/control/control.pb.h"
#include "server/membership/membership.h"

namespace byteps {
namespace {

constexpr int64_t kMostWorkers = 1 << 16;  // each has a greeting here

std::string Plural(int64_t count, const char* what) { return absl::StrCat(count, " ", what, count == 1 ? "" : "s"); }

}  // namespace

absl::StatusOr<std::string> GroupsReport(const Config& config) {
  const int64_t hosts = config.GetInt("DMLC_NUM_WORKER");
  const int64_t local_size = config.GetInt("BYTEPS_LOCAL_SIZE");
  const std::string& groups = config.GetString("BYTEPS_GROUPS");
  std::string text = absl::StrCat("  ", Plural(hosts * local_size, "worker"), ", if each of ", Plural(hosts, "host"),
                                  " has ", local_size, ": ");
  if (hosts * local_size > kMostWorkers) return absl::StrCat(text, "groups as BYTEPS_GROUPS=", groups, " says\n");
  std::vector<control::Hello> hellos(static_cast<size_t>(hosts * local_size));
  std::vector<const control::Hello*> by_rank;
  for (control::Hello& hello : hellos) {
    const auto rank = static_cast<int64_t>(by_rank.size());
    hello.set_host_index(static_cast<int32_t>(rank / local_size));
    hello.set_local_rank(static_cast<int32_t>(rank % local_size));
    hello.set_groups(groups);
    by_rank.push_back(&hello);
  }
  const absl::StatusOr<std::vector<uint32_t>> sizes = GroupSizes(by_rank);
  if (!sizes.ok()) return sizes.status();
  return absl::StrCat(text, sizes->size() == 1 ? "one group, ranks " : "groups of ranks ", GroupRanges(*sizes),
                      " (BYTEPS_GROUPS=", groups, ")\n",
                      "  a result is the fold, in rank order, over the groups of the folds within each\n");
}

}  // namespace byteps
