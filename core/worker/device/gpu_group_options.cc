#include "core/worker/device/gpu_group_options.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace byteps {
namespace {

absl::StatusOr<std::vector<uint32_t>> ReadRoots(const std::string& text, int32_t local_size) {
  std::vector<uint32_t> roots;
  if (text.empty()) return roots;
  for (const auto& item : absl::StrSplit(text, ',')) {
    uint32_t root = 0;
    if (!absl::SimpleAtoi(item, &root) || root >= static_cast<uint32_t>(local_size) ||
        std::find(roots.begin(), roots.end(), root) != roots.end()) {
      return absl::InvalidArgumentError(absl::StrCat("BYTEPS_REDUCE_ROOTS=", text, ": \"", item,
                                                     "\" is no local rank of this host, which has ", local_size,
                                                     " workers, or is there twice"));
    }
    roots.push_back(root);
  }
  return roots;
}

// One set for each switch and the sum of the sets on the CPU: the host's GPUs are always one set here.
absl::Status CheckSwitches(const Config& config, int32_t local_size) {
  const int64_t size = config.GetInt("BYTEPS_PCIE_SWITCH_SIZE");
  if (!config.IsSet("BYTEPS_PCIE_SWITCH_SIZE") || size >= local_size) return absl::OkStatus();
  const std::string what = absl::StrCat("BYTEPS_PCIE_SWITCH_SIZE=", size, " on a host with ", local_size, " workers: ");
  if (local_size % size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, "it does not divide their number"));
  }
  return absl::UnimplementedError(absl::StrCat(
      what, "the GPUs of a host reduce as one set; sets of one PCIe switch are not there. Leave it unset"));
}

}  // namespace

absl::StatusOr<GpuGroupOptions> ReadGpuGroupOptions(const Config& config, int32_t local_size) {
  if (absl::Status status = CheckSwitches(config, local_size); !status.ok()) return status;
  GpuGroupOptions options;
  options.config = &config;
  options.rings = static_cast<uint32_t>(config.GetInt("BYTEPS_NCCL_NUM_RINGS"));
  options.rows_in_group = static_cast<uint32_t>(config.GetInt("BYTEPS_NCCL_GROUP_SIZE"));
  absl::StatusOr<std::vector<uint32_t>> roots = ReadRoots(config.GetString("BYTEPS_REDUCE_ROOTS"), local_size);
  if (!roots.ok()) return roots.status();
  options.roots = *std::move(roots);
  options.required = config.IsSet("BYTEPS_NCCL") && config.GetBool("BYTEPS_NCCL");
  if (!config.GetBool("BYTEPS_NCCL")) options.refusal = "BYTEPS_NCCL=0";
  // A variable of NCCL's, which reads it in this way.
  const char* several = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  options.shares_gpu = several != nullptr && std::string(several) == "1";
  options.deterministic = config.GetBool("BYTEPS_DETERMINISTIC");
  return options;
}

}  // namespace byteps
