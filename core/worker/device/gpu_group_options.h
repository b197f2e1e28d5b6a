// gpu_group_options.h - how the GPUs of a host work together: the variables of the original, read and checked.
//
//     absl::StatusOr<GpuGroupOptions> options = ReadGpuGroupOptions(config, local_size);
//
// Errors, for the first operation on device memory: INVALID_ARGUMENT or UNIMPLEMENTED names the variable that cannot be
// honoured, and why.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPU_GROUP_OPTIONS_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPU_GROUP_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/config.h"

namespace byteps {

struct GpuGroupOptions {
  std::string refusal;          // why this worker takes no part; empty: it does
  bool required = false;        // BYTEPS_NCCL=1: it is an error if there are no collectives of GPUs
  bool shares_gpu = false;      // NCCL's NCCL_MULTI_RANK_GPU_ENABLE: its ranks may use one GPU
  bool deterministic = false;   // BYTEPS_DETERMINISTIC: parts are folded in the order of the members
  uint32_t rings = 1;           // BYTEPS_NCCL_NUM_RINGS: communicators, each with a stream
  uint32_t rows_in_group = 4;   // BYTEPS_NCCL_GROUP_SIZE: rows of parts that are launched at once
  std::vector<uint32_t> roots;  // BYTEPS_REDUCE_ROOTS: the members that own parts; empty: all
  const PluginConfig* config = nullptr;

  // Equal for workers whose collectives meet: they have as many rings, the same roots, and add in the same way.
  uint64_t Number() const {
    uint64_t number = 2 * uint64_t{rings} + (deterministic ? 1 : 0);
    for (const uint32_t root : roots) number = number * 1'000'003 + root + 1;
    return number;
  }
};

absl::StatusOr<GpuGroupOptions> ReadGpuGroupOptions(const Config& config, int32_t local_size);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPU_GROUP_OPTIONS_H_
