// kernel_image.h - the kernels of kernels.cu, compiled, as cuModuleLoadData takes them.
//
//     if (const void* image = KernelImage(); image != nullptr) driver.cuModuleLoadData(&module, image);
//
// nullptr: this build has none. --config=cuda compiles them by nvcc.
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_KERNEL_IMAGE_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_KERNEL_IMAGE_H_

namespace byteps::cuda {

const void* KernelImage();
// By which Toolkit they were compiled: 12090. 0: there are none.
int KernelToolkit();

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_KERNEL_IMAGE_H_
