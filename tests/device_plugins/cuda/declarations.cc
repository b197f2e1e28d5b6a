// declarations.cc - compiles only if device_plugins/cuda/driver_api.h says what cuda.h says: declarations_test.sh.

#include <cuda.h>

#include <type_traits>

#include "device_plugins/cuda/driver_api.h"

namespace byteps::cuda {

// Enumerations are numbers in ours: the same size will do. Everything else is the same type.
template <typename Ours, typename Theirs>
struct Same {
  static constexpr bool Compare() {
    if constexpr (std::is_enum_v<Theirs> && std::is_integral_v<Ours>) {
      return sizeof(Ours) == sizeof(Theirs);
    } else {
      return std::is_same_v<Ours, Theirs>;
    }
  }
  static constexpr bool value = Compare();
};
template <typename Ours, typename Theirs>
struct Same<Ours*, Theirs*> {
  static constexpr bool value = std::is_same_v<Ours, Theirs> || Same<Ours, Theirs>::value;
};
template <typename Ours, typename Theirs, typename... OurArguments, typename... TheirArguments>
struct Same<Ours (*)(OurArguments...), Theirs (*)(TheirArguments...)> {
  static constexpr bool Compare() {
    if constexpr (sizeof...(OurArguments) != sizeof...(TheirArguments)) {
      return false;
    } else {
      return Same<Ours, Theirs>::value && (Same<OurArguments, TheirArguments>::value && ...);
    }
  }
  static constexpr bool value = Compare();
};

#define SAME_FUNCTION(name, ...) static_assert(Same<__VA_ARGS__, decltype(&::name)>::value, #name);
BPS_CUDA_FUNCTIONS(SAME_FUNCTION)
BPS_CUDA_LATER_FUNCTIONS(SAME_FUNCTION)

#define SAME_NUMBER(ours, theirs) static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #theirs)
SAME_NUMBER(kSuccess, CUDA_SUCCESS);
SAME_NUMBER(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME_NUMBER(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_NUMBER(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_NUMBER(kDeinitialized, CUDA_ERROR_DEINITIALIZED);
SAME_NUMBER(kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
SAME_NUMBER(kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME_NUMBER(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME_NUMBER(kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
SAME_NUMBER(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME_NUMBER(kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_NUMBER(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_NUMBER(kInvalidPtx, CUDA_ERROR_INVALID_PTX);
SAME_NUMBER(kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME_NUMBER(kJitCompilerNotFound, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
SAME_NUMBER(kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME_NUMBER(kJitCompilationDisabled, CUDA_ERROR_JIT_COMPILATION_DISABLED);
SAME_NUMBER(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME_NUMBER(kNotReady, CUDA_ERROR_NOT_READY);
SAME_NUMBER(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_NUMBER(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME_NUMBER(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME_NUMBER(kAssert, CUDA_ERROR_ASSERT);
SAME_NUMBER(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_NUMBER(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME_NUMBER(kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME_NUMBER(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
SAME_NUMBER(kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME_NUMBER(kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_NUMBER(kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
SAME_NUMBER(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_NUMBER(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_NUMBER(kAttributeMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_NUMBER(kUsesAddressesOfRegistered, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME_NUMBER(kRemoteAccessSupported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
SAME_NUMBER(kRemoteFlushOptions, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
SAME_NUMBER(kRemoteWritesOrdering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
SAME_NUMBER(kDmaBufSupported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
SAME_NUMBER(kRemoteFlushByHost, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
SAME_NUMBER(kRemoteWritesOrderedForOwner, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
SAME_NUMBER(kRemoteFlushCurrentContext, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
SAME_NUMBER(kRemoteFlushToOwner, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
SAME_NUMBER(kRangeAsDmaBuf, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME_NUMBER(kAttributeBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME_NUMBER(kAttributeIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_NUMBER(kAttributeDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_NUMBER(kAttributeIsOneAllocation, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME_NUMBER(kAttributeRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME_NUMBER(kAttributeRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME_NUMBER(kMemoryTypeHost, CU_MEMORYTYPE_HOST);
SAME_NUMBER(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
SAME_NUMBER(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME_NUMBER(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME_NUMBER(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
SAME_NUMBER(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
SAME_NUMBER(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME_NUMBER(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_NUMBER(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);

}  // namespace byteps::cuda
