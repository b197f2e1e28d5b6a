// driver_api.h - what this plugin uses of the CUDA driver's interface, declared by itself: it is built without the CUDA
// Toolkit, and the driver is found at run time. tests/device_plugins/cuda compares each line with cuda.h where that is
// installed.
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_DRIVER_API_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_DRIVER_API_H_

#include <cstddef>

// The tags of cuda.h, so that its handles and these are the same types.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace byteps::cuda {

using Context = CUctx_st*;
using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;
using ModuleHandle = CUmod_st*;
using FunctionHandle = CUfunc_st*;
using DevicePointer = unsigned long long;
using Result = int;        // CUresult
using DeviceNumber = int;  // CUdevice

// CUresult.
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kDeviceUnavailable = 46;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kEccUncorrectable = 214;
inline constexpr Result kInvalidPtx = 218;
inline constexpr Result kNvlinkUncorrectable = 220;
inline constexpr Result kJitCompilerNotFound = 221;
inline constexpr Result kUnsupportedPtxVersion = 222;
inline constexpr Result kJitCompilationDisabled = 223;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchTimeout = 702;
inline constexpr Result kContextIsDestroyed = 709;
inline constexpr Result kAssert = 710;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;
inline constexpr Result kHostMemoryNotRegistered = 713;
inline constexpr Result kHardwareStackError = 714;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kSystemDriverMismatch = 803;
inline constexpr Result kStreamCaptureUnsupported = 900;
inline constexpr Result kCapturedEvent = 907;

// CUdevice_attribute.
inline constexpr int kComputeCapabilityMajor = 75;
inline constexpr int kComputeCapabilityMinor = 76;
inline constexpr int kUsesAddressesOfRegistered = 91;  // of the host, as they are
inline constexpr int kRemoteAccessSupported = 116;     // GPUDirect RDMA
inline constexpr int kRemoteFlushOptions = 117;
inline constexpr int kRemoteWritesOrdering = 118;
inline constexpr int kDmaBufSupported = 124;

// CUflushGPUDirectRDMAWritesOptions, CUGPUDirectRDMAWritesOrdering, and the target and scope of a flush.
inline constexpr int kRemoteFlushByHost = 1;
inline constexpr int kRemoteWritesOrderedForOwner = 100;
inline constexpr int kRemoteFlushCurrentContext = 0;
inline constexpr int kRemoteFlushToOwner = 100;

// CUmemRangeHandleType.
inline constexpr int kRangeAsDmaBuf = 1;

// CUpointer_attribute, and CUmemorytype.
inline constexpr int kAttributeMemoryType = 2;
inline constexpr int kAttributeBufferId = 7;
inline constexpr int kAttributeIsManaged = 8;
inline constexpr int kAttributeDeviceOrdinal = 9;
inline constexpr int kAttributeIsOneAllocation = 10;  // that other processes may open as a whole (CUDA IPC)
inline constexpr int kAttributeRangeStart = 11;
inline constexpr int kAttributeRangeSize = 12;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;

// Flags.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;  // kernels reach it by its address

// CUstreamCaptureMode, CUstreamCaptureStatus.
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kCaptureNone = 0;

// Each function by the name that dlsym finds, and its type. The compiler of cuda.h maps cuMemAlloc and others to _v2.
#define BPS_CUDA_FUNCTIONS(X)                                                                                        \
  X(cuInit, Result (*)(unsigned))                                                                                    \
  X(cuDriverGetVersion, Result (*)(int*))                                                                            \
  X(cuGetErrorName, Result (*)(Result, const char**))                                                                \
  X(cuGetErrorString, Result (*)(Result, const char**))                                                              \
  X(cuDeviceGetCount, Result (*)(int*))                                                                              \
  X(cuDeviceGet, Result (*)(DeviceNumber*, int))                                                                     \
  X(cuDeviceGetName, Result (*)(char*, int, DeviceNumber))                                                           \
  X(cuDeviceTotalMem_v2, Result (*)(size_t*, DeviceNumber))                                                          \
  X(cuDeviceGetAttribute, Result (*)(int*, int, DeviceNumber))                                                       \
  X(cuDeviceGetPCIBusId, Result (*)(char*, int, DeviceNumber))                                                       \
  X(cuDevicePrimaryCtxRetain, Result (*)(Context*, DeviceNumber))                                                    \
  X(cuDevicePrimaryCtxRelease_v2, Result (*)(DeviceNumber))                                                          \
  X(cuCtxPushCurrent_v2, Result (*)(Context))                                                                        \
  X(cuCtxPopCurrent_v2, Result (*)(Context*))                                                                        \
  X(cuCtxGetDevice, Result (*)(DeviceNumber*))                                                                       \
  X(cuCtxGetStreamPriorityRange, Result (*)(int*, int*))                                                             \
  X(cuMemAlloc_v2, Result (*)(DevicePointer*, size_t))                                                               \
  X(cuMemFree_v2, Result (*)(DevicePointer))                                                                         \
  X(cuMemHostAlloc, Result (*)(void**, size_t, unsigned))                                                            \
  X(cuMemFreeHost, Result (*)(void*))                                                                                \
  X(cuMemHostRegister_v2, Result (*)(void*, size_t, unsigned))                                                       \
  X(cuMemHostUnregister, Result (*)(void*))                                                                          \
  X(cuPointerGetAttribute, Result (*)(void*, int, DevicePointer))                                                    \
  X(cuStreamCreateWithPriority, Result (*)(StreamHandle*, unsigned, int))                                            \
  X(cuStreamDestroy_v2, Result (*)(StreamHandle))                                                                    \
  X(cuStreamSynchronize, Result (*)(StreamHandle))                                                                   \
  X(cuStreamWaitEvent, Result (*)(StreamHandle, EventHandle, unsigned))                                              \
  X(cuStreamIsCapturing, Result (*)(StreamHandle, int*))                                                             \
  X(cuStreamGetCtx, Result (*)(StreamHandle, Context*))                                                              \
  X(cuThreadExchangeStreamCaptureMode, Result (*)(int*))                                                             \
  X(cuEventCreate, Result (*)(EventHandle*, unsigned))                                                               \
  X(cuEventDestroy_v2, Result (*)(EventHandle))                                                                      \
  X(cuEventRecord, Result (*)(EventHandle, StreamHandle))                                                            \
  X(cuEventQuery, Result (*)(EventHandle))                                                                           \
  X(cuMemcpyDtoHAsync_v2, Result (*)(void*, DevicePointer, size_t, StreamHandle))                                    \
  X(cuMemcpyHtoDAsync_v2, Result (*)(DevicePointer, const void*, size_t, StreamHandle))                              \
  X(cuMemcpyDtoDAsync_v2, Result (*)(DevicePointer, DevicePointer, size_t, StreamHandle))                            \
  X(cuMemsetD8Async, Result (*)(DevicePointer, unsigned char, size_t, StreamHandle))                                 \
  X(cuModuleLoadData, Result (*)(ModuleHandle*, const void*))                                                        \
  X(cuModuleUnload, Result (*)(ModuleHandle))                                                                        \
  X(cuModuleGetFunction, Result (*)(FunctionHandle*, ModuleHandle, const char*))                                     \
  X(cuLaunchKernel, Result (*)(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                               StreamHandle, void**, void**))

// Those that drivers of CUDA 11.2 need not have: nullptr then.
#define BPS_CUDA_LATER_FUNCTIONS(X)                   \
  X(cuFlushGPUDirectRDMAWrites, Result (*)(int, int)) \
  X(cuMemGetHandleForAddressRange, Result (*)(void*, DevicePointer, size_t, int, unsigned long long))

// The driver's functions, found by name.
struct DriverFunctions {
  // (A declarator cannot follow a function pointer's type: hence the alias.)
  template <typename Pointer>
  using FunctionPointer = Pointer;
#define BPS_CUDA_MEMBER(name, ...) FunctionPointer<__VA_ARGS__> name = nullptr;
  BPS_CUDA_FUNCTIONS(BPS_CUDA_MEMBER)
  BPS_CUDA_LATER_FUNCTIONS(BPS_CUDA_MEMBER)
#undef BPS_CUDA_MEMBER
};

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_DRIVER_API_H_
