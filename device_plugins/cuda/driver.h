// driver.h - the CUDA driver of this machine, found at run time.
//
//     const Driver& driver = Driver::Get();          // throws Error: "no NVIDIA driver: libcuda.so.1: cannot open ..."
//     driver.Check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
//
// Threads: any. Loaded once; never unloaded.
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_DRIVER_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_DRIVER_H_

#include <string>

#include "device_plugins/cuda/driver_api.h"

namespace byteps::cuda {

// "13.0", of 13000.
std::string CudaVersion(int number);

class Driver : public DriverFunctions {
 public:
  // Loads and initialises it. Throws Error: UNAVAILABLE (there is none, or no device), FAILED_PRECONDITION (too old).
  static const Driver& Get();

  int devices() const { return devices_; }
  // "13.0"
  std::string version() const { return CudaVersion(version_); }

  // Throws Error, with the driver's own name and text for `result`.
  void Check(Result result, const char* call) const;
  // "CUDA_ERROR_NO_DEVICE (100)"
  std::string Describe(Result result) const;

 private:
  Driver();

  int devices_ = 0;
  int version_ = 0;  // 13000
};

// The code of byteps.h for `result`.
int CodeOf(Result result);

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_DRIVER_H_
