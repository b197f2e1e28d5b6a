#include "device_plugins/cuda/driver.h"

#include <dlfcn.h>

#include <mutex>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"

namespace byteps::cuda {
namespace {

using devices::Error;

constexpr char kLibrary[] = "libcuda.so.1";

}  // namespace

std::string CudaVersion(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

int CodeOf(Result result) {
  switch (result) {
    case kSuccess:
      return BPS_OK;
    case kInvalidValue:
    case kInvalidDevice:
    case kInvalidHandle:
    case kHostMemoryAlreadyRegistered:
    case kHostMemoryNotRegistered:
      return BPS_INVALID_ARGUMENT;
    case kOutOfMemory:
      return BPS_RESOURCE_EXHAUSTED;
    case kNoDevice:
    case kDeviceUnavailable:
      return BPS_UNAVAILABLE;
    case kNotInitialized:  // in a forked child, too
    case kDeinitialized:
    case kInvalidContext:
    case kSystemDriverMismatch:
      return BPS_FAILED_PRECONDITION;
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContextIsDestroyed:
      return BPS_DATA_LOSS;
    default:
      break;
  }
  if (result >= kStreamCaptureUnsupported && result <= kCapturedEvent) return BPS_FAILED_PRECONDITION;
  // An illegal address, a failed assertion, and the other ends of a context.
  const bool lost = result == kIllegalAddress || result == kLaunchTimeout || result == kAssert ||
                    (result >= kHardwareStackError && result <= kLaunchFailed);
  return lost ? BPS_DATA_LOSS : BPS_INTERNAL;
}

Driver::Driver() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(BPS_UNAVAILABLE, std::string("no NVIDIA driver: ") + ::dlerror());
#define BPS_CUDA_FIND(name, ...)                                                                             \
  name = reinterpret_cast<__VA_ARGS__>(::dlsym(library, #name));                                             \
  if (name == nullptr) {                                                                                     \
    throw Error(BPS_FAILED_PRECONDITION, std::string("the NVIDIA driver is too old: ") + kLibrary +          \
                                             " lacks " #name "; CUDA 11.2 (driver 460) or later is needed"); \
  }
  BPS_CUDA_FUNCTIONS(BPS_CUDA_FIND)
#undef BPS_CUDA_FIND
#define BPS_CUDA_FIND(name, ...) name = reinterpret_cast<__VA_ARGS__>(::dlsym(library, #name));
  BPS_CUDA_LATER_FUNCTIONS(BPS_CUDA_FIND)
#undef BPS_CUDA_FIND
  cuDriverGetVersion(&version_);
  const std::string subject = "the NVIDIA driver (CUDA " + std::to_string(version_) + ") ";
  if (const Result result = cuInit(0); result != kSuccess) {
    const bool none = result == kNoDevice;
    throw Error(CodeOf(result), subject + (none ? "gives no device: " : "cannot be initialised: ") + Describe(result));
  }
  Check(cuDeviceGetCount(&devices_), "cuDeviceGetCount");
  if (devices_ == 0) throw Error(BPS_UNAVAILABLE, subject + "gives no device; is CUDA_VISIBLE_DEVICES empty?");
}

const Driver& Driver::Get() {
  static std::mutex mutex;
  static const Driver* driver = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  // What failed is tried again: a container may get its devices later.
  if (driver == nullptr) driver = new Driver();
  return *driver;
}

std::string Driver::Describe(Result result) const {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return std::string(name == nullptr ? "CUDA error" : name) + " (" + std::to_string(result) + ")";
}

void Driver::Check(Result result, const char* call) const {
  if (result == kSuccess) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  throw Error(CodeOf(result), std::string(call) + ": " + Describe(result) + (text == nullptr ? "" : ": ") +
                                  (text == nullptr ? "" : text));
}

}  // namespace byteps::cuda
