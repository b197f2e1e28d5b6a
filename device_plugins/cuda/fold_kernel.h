// fold_kernel.h - what the fold kernel of fold_kernel.cu is called with.
//
//     FoldArguments arguments = {to, count, sources, reduction, {a, b, c}};
//     cuLaunchKernel(bps_fold_float32, ..., {&arguments})         // a function for each data type
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_FOLD_KERNEL_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_FOLD_KERNEL_H_

#include <stdint.h>

namespace byteps::cuda {

inline constexpr unsigned kFoldSources = 64;  // at most
inline constexpr unsigned kFoldThreads = 256;
inline constexpr unsigned kFoldBlocks = 1024;  // at most; a thread goes on with the next elements

struct FoldArguments {
  void* to;
  uint64_t count;
  uint32_t sources;
  int32_t reduction;
  const void* from[kFoldSources];
};

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_FOLD_KERNEL_H_
