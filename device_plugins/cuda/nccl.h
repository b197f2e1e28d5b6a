// nccl.h - which NCCL this process would use: sought, asked for its version, and not linked.
//
//     Nccl nccl = FindNccl(home);
//     nccl.text        // "NCCL 2.28.9, /usr/lib/x86_64-linux-gnu/libnccl.so.2"; "" where there is none:
//     nccl.why_not     // "libnccl.so.2: cannot open shared object file: No such file or directory"
//
// In this order: the one that is loaded already (PyTorch's; two versions do not live well in one process), lib/ below
// `home` (BYTEPS_NCCL_HOME), the PyPI package nvidia-nccl beside which this plugin is installed, /usr/local/nccl, the
// loader's path. None is found if one is loaded already that is not the one of `home`.
//
// Threads: any.
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_NCCL_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_NCCL_H_

#include <string>

namespace byteps::cuda {

struct Nccl {
  std::string text;
  std::string why_not;
  int version = 0;          // 22809
  void* library = nullptr;  // for dlsym; never closed
};

Nccl FindNccl(const std::string& home);

// "2.28.9" for 22809.
std::string NcclVersion(int number);

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_NCCL_H_
