// kernels.h - what the kernels of kernels.cu are called with.
//
//     FoldArguments arguments = {to, count, sources, reduction, {a, b, c}};
//     cuLaunchKernel(bps_fold_float32, ..., {&arguments})         // a function for each data type
//     ConvertArguments arguments = {to, from, count, factor};
//     cuLaunchKernel(bps_convert_float32_float16, ..., {&arguments})     // for each pair of them: from, to
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_KERNELS_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_KERNELS_H_

#include <stdint.h>

namespace byteps::cuda {

inline constexpr unsigned kFoldSources = 64;  // at most
inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kBlocks = 1024;  // at most; a thread goes on with the next elements

struct FoldArguments {
  void* to;
  uint64_t count;
  uint32_t sources;
  int32_t reduction;
  const void* from[kFoldSources];
};

// One of `to` and `from` may be pinned memory of the host.
struct ConvertArguments {
  void* to;
  const void* from;
  uint64_t count;
  double factor;
};

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_KERNELS_H_
