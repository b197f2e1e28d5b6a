#include "device_plugins/cuda/kernel_image.h"

namespace byteps::cuda {

const void* KernelImage() { return nullptr; }
int KernelToolkit() { return 0; }

}  // namespace byteps::cuda
