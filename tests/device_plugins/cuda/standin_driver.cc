// standin_driver.cc - a libcuda.so.1 whose GPUs are fake ones: the CUDA plugin runs on it as on a driver.
//
// STANDIN_CUDA_INIT: what cuInit answers; STANDIN_CUDA_DEVICES: how many devices; STANDIN_CUDA_DOMAIN: of their PCI
// addresses, by default a number of the process: each has GPUs of its own; STANDIN_CUDA_MAPPED: 1: all device memory is
// as if it had been mapped piece by piece; STANDIN_CUDA_MODULE: what cuModuleLoadData answers.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "abi/device.h"
#include "device_plugins/cuda/driver_api.h"
#include "device_plugins/cuda/kernels.h"
#include "device_plugins/fake/control.h"

namespace byteps::cuda {
namespace {

const fake_gpu_control& Gpu() { return *bps_fake_gpu(); }
const bps_device_table& Table() { return *Gpu().table; }

constexpr int kDevices = 2;

std::mutex mutex;
struct Primary {
  bps_device* device = nullptr;
  int retained = 0;
};
std::map<int, Primary> contexts;  // by device
thread_local std::vector<Context> stack;

int Number(const char* variable, int fallback) {
  const char* value = std::getenv(variable);
  return value == nullptr ? fallback : std::atoi(value);
}

Result Code(int32_t code) {
  switch (code) {
    case BPS_OK:
      return kSuccess;
    case BPS_DEVICE_NOT_READY:
      return kNotReady;
    case BPS_INVALID_ARGUMENT:
      return kInvalidValue;
    case BPS_RESOURCE_EXHAUSTED:
      return kOutOfMemory;
    case BPS_DATA_LOSS:
      return kIllegalAddress;
    default:
      return kNotInitialized;
  }
}

Context ContextOf(int device, int retain) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto [at, made] = contexts.emplace(device, Primary());
  bps_device_open_args args = {};
  args.struct_size = sizeof args;
  args.index = device;
  if (made && Table().open(&args, &at->second.device, nullptr) != BPS_OK) {
    contexts.erase(at);
    return nullptr;
  }
  at->second.retained += retain;
  return reinterpret_cast<Context>(at->second.device);
}

bps_device* Now() { return stack.empty() ? nullptr : reinterpret_cast<bps_device*>(stack.back()); }

void* Pointer(DevicePointer address) { return reinterpret_cast<void*>(address); }
bps_device_event* Event(EventHandle event) { return reinterpret_cast<bps_device_event*>(event); }

#define EXPORT extern "C" __attribute__((visibility("default"))) Result
// In a context, as the driver wants it.
#define IN_CONTEXT \
  if (Now() == nullptr) return kInvalidContext

}  // namespace

EXPORT cuInit(unsigned) { return Number("STANDIN_CUDA_INIT", kSuccess); }
EXPORT cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
EXPORT cuGetErrorName(Result result, const char** name) {
  static const std::map<Result, const char*> names = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                      {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
                                                      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  const auto found = names.find(result);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? kInvalidValue : kSuccess;
}
EXPORT cuGetErrorString(Result result, const char** text) {
  *text = result == kIllegalAddress ? "an illegal memory access was encountered" : "says the stand-in";
  return kSuccess;
}
EXPORT cuDeviceGetCount(int* count) { return *count = Number("STANDIN_CUDA_DEVICES", kDevices), kSuccess; }
EXPORT cuDeviceGet(DeviceNumber* device, int index) { return *device = index + 10, kSuccess; }
EXPORT cuDeviceGetName(char* name, int size, DeviceNumber) {
  return std::snprintf(name, static_cast<size_t>(size), "stand-in"), kSuccess;
}
EXPORT cuDeviceGetPCIBusId(char* name, int size, DeviceNumber device) {
  const int domain = Number("STANDIN_CUDA_DOMAIN", ::getpid() & 0xffff);
  return std::snprintf(name, static_cast<size_t>(size), "%04x:%02x:00.0", static_cast<unsigned>(domain),
                       static_cast<unsigned>(device)),
         kSuccess;
}
EXPORT cuDeviceTotalMem_v2(size_t* bytes, DeviceNumber) { return *bytes = size_t{1} << 30, kSuccess; }
EXPORT cuDeviceGetAttribute(int* value, int attribute, DeviceNumber) {
  // Network cards may be let at its memory, and what they write has to be flushed.
  const bool one = attribute == kRemoteAccessSupported || attribute == kRemoteFlushOptions ||
                   attribute == kDmaBufSupported || attribute == kUsesAddressesOfRegistered;
  return *value = attribute == kComputeCapabilityMajor ? 9 : (one ? 1 : 0), kSuccess;
}
EXPORT cuFlushGPUDirectRDMAWrites(int target, int scope) {
  IN_CONTEXT;
  if (target != kRemoteFlushCurrentContext || scope != kRemoteFlushToOwner) return kInvalidValue;
  return Code(Table().flush_remote(Now(), nullptr));
}
EXPORT cuMemGetHandleForAddressRange(void* handle, DevicePointer address, size_t size, int type, unsigned long long) {
  IN_CONTEXT;
  if (type != kRangeAsDmaBuf) return kInvalidValue;
  return Code(Table().dmabuf(Now(), Pointer(address), size, static_cast<int32_t*>(handle), nullptr));
}
EXPORT cuDevicePrimaryCtxRetain(Context* context, DeviceNumber device) {
  *context = ContextOf(device - 10, 1);
  return *context == nullptr ? kInvalidDevice : kSuccess;
}
EXPORT cuDevicePrimaryCtxRelease_v2(DeviceNumber device) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = contexts.find(device - 10);
  if (found == contexts.end() || found->second.retained == 0) return kInvalidContext;
  if (--found->second.retained == 0) {
    Table().close(found->second.device);
    contexts.erase(found);
  }
  return kSuccess;
}
EXPORT cuCtxGetCurrent(Context* context) {
  *context = stack.empty() ? nullptr : stack.back();
  return kSuccess;
}
EXPORT cuCtxPushCurrent_v2(Context context) {
  if (context == nullptr) return kInvalidContext;
  return stack.push_back(context), kSuccess;
}
EXPORT cuCtxPopCurrent_v2(Context* context) {
  IN_CONTEXT;
  *context = stack.back();
  return stack.pop_back(), kSuccess;
}
EXPORT cuCtxGetDevice(DeviceNumber* device) {
  IN_CONTEXT;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [number, primary] : contexts) {
    if (primary.device == Now()) return *device = number + 10, kSuccess;
  }
  return kInvalidContext;
}
EXPORT cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, kSuccess; }
EXPORT cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int now = 0;
  return std::swap(now, *mode), kSuccess;
}

EXPORT cuMemAlloc_v2(DevicePointer* address, size_t size) {
  IN_CONTEXT;
  void* base = nullptr;
  const int32_t code = Table().allocate(Now(), size, &base, nullptr);
  return *address = reinterpret_cast<DevicePointer>(base), Code(code);
}
EXPORT cuMemFree_v2(DevicePointer address) {
  IN_CONTEXT;
  return Code(Table().release(Now(), Pointer(address), nullptr));
}
EXPORT cuMemHostAlloc(void** base, size_t size, unsigned) {
  IN_CONTEXT;
  return Code(Table().allocate_host(Now(), size, base, nullptr));
}
EXPORT cuMemFreeHost(void* base) {
  IN_CONTEXT;
  return Code(Table().release_host(Now(), base, nullptr));
}
EXPORT cuMemHostRegister_v2(void* base, size_t size, unsigned flags) {
  IN_CONTEXT;
  // What is not mapped is out of the reach of kernels.
  if (flags != (kHostRegisterPortable | kHostRegisterDeviceMap)) return kInvalidValue;
  return Code(Table().register_host(Now(), base, size, nullptr));
}
EXPORT cuMemHostUnregister(void* base) {
  IN_CONTEXT;
  const int32_t code = Table().unregister_host(Now(), base, nullptr);
  return code == BPS_INVALID_ARGUMENT ? kHostMemoryNotRegistered : Code(code);
}
EXPORT cuPointerGetAttribute(void* out, int attribute, DevicePointer address) {
  IN_CONTEXT;
  bps_device_pointer pointer = {};
  pointer.struct_size = sizeof pointer;
  if (Table().pointer(Now(), Pointer(address), &pointer, nullptr) != BPS_OK || pointer.type == BPS_CPU) {
    return kInvalidValue;
  }
  const unsigned type = pointer.type == BPS_CUDA ? kMemoryTypeDevice : kMemoryTypeHost;
  const auto base = reinterpret_cast<DevicePointer>(pointer.base);
  const size_t size = pointer.size;
  if (attribute == kAttributeMemoryType) std::memcpy(out, &type, sizeof type);
  if (attribute == kAttributeDeviceOrdinal) std::memcpy(out, &pointer.id, sizeof pointer.id);
  if (attribute == kAttributeRangeStart) std::memcpy(out, &base, sizeof base);
  if (attribute == kAttributeRangeSize) std::memcpy(out, &size, sizeof size);
  const unsigned whole = Number("STANDIN_CUDA_MAPPED", 0) == 0 ? 1 : 0;
  if (attribute == kAttributeIsOneAllocation) std::memcpy(out, &whole, sizeof whole);
  if (attribute == kAttributeBufferId && whole == 0) return kInvalidValue;
  if (attribute == kAttributeBufferId) std::memcpy(out, &pointer.identity, sizeof pointer.identity);
  return kSuccess;
}

EXPORT cuStreamCreateWithPriority(StreamHandle* stream, unsigned flags, int priority) {
  IN_CONTEXT;
  if (flags != kStreamNonBlocking || priority > 0 || priority < -5) return kInvalidValue;
  bps_device_stream made = nullptr;
  const int32_t code = Table().stream_create(Now(), -priority, &made, nullptr);
  return *stream = static_cast<StreamHandle>(made), Code(code);
}
EXPORT cuStreamDestroy_v2(StreamHandle stream) {
  IN_CONTEXT;
  return Code(Table().stream_destroy(Now(), stream, nullptr));
}
EXPORT cuStreamSynchronize(StreamHandle stream) {
  IN_CONTEXT;
  return Code(Table().synchronize(Now(), stream, nullptr));
}
EXPORT cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned) {
  IN_CONTEXT;
  return Code(Table().stream_wait(Now(), stream, Event(event), nullptr));
}
EXPORT cuStreamIsCapturing(StreamHandle stream, int* capturing) {
  IN_CONTEXT;
  bps_device_stream_state state = {};
  state.struct_size = sizeof state;
  const int32_t code = Table().stream_state(Now(), stream, &state, nullptr);
  return *capturing = state.capturing, Code(code);
}
EXPORT cuStreamGetCtx(StreamHandle stream, Context* context) {
  IN_CONTEXT;
  bps_device_stream_state state = {};
  state.struct_size = sizeof state;
  const int32_t code = Table().stream_state(Now(), stream, &state, nullptr);
  return *context = ContextOf(state.id, 0), Code(code);
}

EXPORT cuStreamBeginCapture_v2(StreamHandle stream, int) {
  IN_CONTEXT;
  return Gpu().capture(stream, 1), kSuccess;
}
EXPORT cuStreamEndCapture(StreamHandle stream, void** graph) {
  IN_CONTEXT;
  *graph = nullptr;
  return Gpu().capture(stream, 0), kSuccess;
}

EXPORT cuEventCreate(EventHandle* event, unsigned flags) {
  IN_CONTEXT;
  if (flags != kEventDisableTiming) return kInvalidValue;
  bps_device_event* made = nullptr;
  const int32_t code = Table().event_create(Now(), &made, nullptr);
  return *event = reinterpret_cast<EventHandle>(made), Code(code);
}
EXPORT cuEventDestroy_v2(EventHandle event) {
  IN_CONTEXT;
  return Code(Table().event_destroy(Now(), Event(event), nullptr));
}
EXPORT cuEventRecord(EventHandle event, StreamHandle stream) {
  IN_CONTEXT;
  return Code(Table().event_record(Now(), Event(event), stream, nullptr));
}
EXPORT cuEventQuery(EventHandle event) {
  IN_CONTEXT;
  return Code(Table().event_query(Now(), Event(event), nullptr));
}

EXPORT cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t size, StreamHandle stream) {
  IN_CONTEXT;
  return Code(Table().copy_to_host(Now(), to, Pointer(from), size, stream, nullptr));
}
EXPORT cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t size, StreamHandle stream) {
  IN_CONTEXT;
  return Code(Table().copy_to_device(Now(), Pointer(to), from, size, stream, nullptr));
}
EXPORT cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t size, StreamHandle stream) {
  IN_CONTEXT;
  return Code(Table().copy_within(Now(), Pointer(to), Pointer(from), size, stream, nullptr));
}
EXPORT cuMemsetD8Async(DevicePointer to, unsigned char byte, size_t size, StreamHandle stream) {
  IN_CONTEXT;
  return Code(Table().fill(Now(), Pointer(to), byte, size, stream, nullptr));
}

// A module is anything that is not empty; its functions are those of kernels.cu, computed by the CPU.
struct Kernel {
  uint32_t dtype;
  uint32_t to = 0;  // of a conversion; 0: a fold
};

EXPORT cuModuleLoadData(ModuleHandle* module, const void* image) {
  IN_CONTEXT;
  if (image == nullptr) return kInvalidValue;
  if (const int told = Number("STANDIN_CUDA_MODULE", kSuccess); told != kSuccess) return told;
  return *module = reinterpret_cast<ModuleHandle>(const_cast<void*>(image)), kSuccess;
}
EXPORT cuModuleUnload(ModuleHandle) { return kSuccess; }
EXPORT cuModuleGetFunction(FunctionHandle* function, ModuleHandle, const char* name) {
  static std::map<std::string, Kernel> kernels = {{"bps_fold_float32", {BPS_FLOAT32}},
                                                  {"bps_fold_float64", {BPS_FLOAT64}},
                                                  {"bps_fold_float16", {BPS_FLOAT16}},
                                                  {"bps_fold_bfloat16", {BPS_BFLOAT16}},
                                                  {"bps_fold_int8", {BPS_INT8}},
                                                  {"bps_fold_uint8", {BPS_UINT8}},
                                                  {"bps_fold_int32", {BPS_INT32}},
                                                  {"bps_fold_int64", {BPS_INT64}},
                                                  {"bps_convert_float32_float32", {BPS_FLOAT32, BPS_FLOAT32}},
                                                  {"bps_convert_float64_float64", {BPS_FLOAT64, BPS_FLOAT64}},
                                                  {"bps_convert_float16_float16", {BPS_FLOAT16, BPS_FLOAT16}},
                                                  {"bps_convert_bfloat16_bfloat16", {BPS_BFLOAT16, BPS_BFLOAT16}},
                                                  {"bps_convert_float32_float16", {BPS_FLOAT32, BPS_FLOAT16}},
                                                  {"bps_convert_float32_bfloat16", {BPS_FLOAT32, BPS_BFLOAT16}},
                                                  {"bps_convert_float16_float32", {BPS_FLOAT16, BPS_FLOAT32}},
                                                  {"bps_convert_bfloat16_float32", {BPS_BFLOAT16, BPS_FLOAT32}}};
  const auto found = kernels.find(name);
  if (found == kernels.end()) return kInvalidValue;
  return *function = reinterpret_cast<FunctionHandle>(&found->second), kSuccess;
}
EXPORT cuLaunchKernel(FunctionHandle function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                      unsigned, StreamHandle stream, void** parameters, void**) {
  IN_CONTEXT;
  if (x == 0 || x > kBlocks || y != 1 || z != 1 || threads != kThreads) return kInvalidValue;
  const auto& kernel = *reinterpret_cast<const Kernel*>(function);
  if (kernel.to != 0) {
    const auto& arguments = *static_cast<const ConvertArguments*>(parameters[0]);
    return Code(Table().convert(Now(), arguments.to, kernel.to, arguments.from, kernel.dtype, arguments.count,
                                arguments.factor, stream, nullptr));
  }
  const auto& arguments = *static_cast<const FoldArguments*>(parameters[0]);
  return Code(Table().fold(Now(), arguments.to, arguments.from, arguments.sources, arguments.count, kernel.dtype,
                           arguments.reduction, stream, nullptr));
}

}  // namespace byteps::cuda
