#include "device_plugins/cuda/device.h"

#include <algorithm>
#include <map>
#include <string>

#include "abi/byteps.h"
#include "device_plugins/common/convert.h"
#include "device_plugins/common/error.h"
#include "device_plugins/common/fold.h"
#include "device_plugins/cuda/kernel_image.h"
#include "device_plugins/cuda/kernels.h"

namespace byteps::cuda {
namespace {

using devices::Error;

StreamHandle Of(bps_device_stream stream) { return static_cast<StreamHandle>(stream); }
EventHandle Of(bps_device_event* event) { return reinterpret_cast<EventHandle>(event); }
DevicePointer Address(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

DeviceNumber NumberOf(const Driver& driver, int32_t index) {
  if (index < 0 || index >= driver.devices()) {
    throw Error(BPS_INVALID_ARGUMENT, "there is no CUDA device " + std::to_string(index) + "; this process sees " +
                                          std::to_string(driver.devices()));
  }
  DeviceNumber number = 0;
  driver.Check(driver.cuDeviceGet(&number, index), "cuDeviceGet");
  return number;
}

// As kernels.cu names it.
const char* NameOf(uint32_t dtype) {
  static const std::map<uint32_t, const char*> names = {
      {BPS_FLOAT32, "float32"}, {BPS_FLOAT64, "float64"}, {BPS_FLOAT16, "float16"}, {BPS_BFLOAT16, "bfloat16"},
      {BPS_INT8, "int8"},       {BPS_UINT8, "uint8"},     {BPS_INT32, "int32"},     {BPS_INT64, "int64"}};
  return names.at(dtype);
}

// What the driver answers to kernels that it cannot run, or not translate for its GPU.
bool RefusesKernels(Result result) {
  switch (result) {
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kInvalidPtx:
    case kJitCompilerNotFound:
    case kUnsupportedPtxVersion:
    case kJitCompilationDisabled:
      return true;
    default:
      return false;
  }
}

#define BPS_CUDA_CALL(name, ...) driver_.Check(driver_.name(__VA_ARGS__), #name)

}  // namespace

Device::Use::Use(const Device& device) : Use(device.driver_, device.context_) {}

Device::Use::Use(const Driver& driver, Context context) : driver_(driver), mode_(kCaptureRelaxed) {
  driver_.Check(driver_.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

Device::Use::~Use() {
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  Context ignored = nullptr;
  driver_.cuCtxPopCurrent_v2(&ignored);
}

Device::Device(const Driver& driver, int32_t index) : driver_(driver), index_(index), number_(NumberOf(driver, index)) {
  BPS_CUDA_CALL(cuDevicePrimaryCtxRetain, &context_, number_);
}

Device::~Device() {
  if (driver_.cuCtxPushCurrent_v2(context_) == kSuccess) {
    for (StreamHandle stream : own_) {
      driver_.cuStreamSynchronize(stream);
      driver_.cuStreamDestroy_v2(stream);
    }
    if (kernels_ != nullptr) driver_.cuModuleUnload(kernels_);
    Context ignored = nullptr;
    driver_.cuCtxPopCurrent_v2(&ignored);
  }
  driver_.cuDevicePrimaryCtxRelease_v2(number_);
}

void* Device::Allocate(uint64_t size) {
  const Use use(*this);
  DevicePointer base = 0;
  BPS_CUDA_CALL(cuMemAlloc_v2, &base, size);
  return reinterpret_cast<void*>(base);
}

void Device::Release(void* base) {
  const Use use(*this);
  BPS_CUDA_CALL(cuMemFree_v2, Address(base));
}

void* Device::AllocateHost(uint64_t size) {
  const Use use(*this);
  void* base = nullptr;
  BPS_CUDA_CALL(cuMemHostAlloc, &base, size, kHostAllocPortable);
  return base;
}

void Device::ReleaseHost(void* base) {
  const Use use(*this);
  BPS_CUDA_CALL(cuMemFreeHost, base);
}

void Device::RegisterHost(void* base, uint64_t size) {
  const Use use(*this);
  BPS_CUDA_CALL(cuMemHostRegister_v2, base, size, kHostRegisterPortable | kHostRegisterDeviceMap);
}

void Device::UnregisterHost(void* base) {
  const Use use(*this);
  BPS_CUDA_CALL(cuMemHostUnregister, base);
}

bps_device_pointer Device::Pointer(const void* address) {
  const Use use(*this);
  bps_device_pointer pointer = {};
  pointer.type = BPS_CPU;
  unsigned type = 0;
  // Of memory that CUDA does not know this is an error.
  const Result result = driver_.cuPointerGetAttribute(&type, kAttributeMemoryType, Address(address));
  if (result == kInvalidValue) return pointer;
  driver_.Check(result, "cuPointerGetAttribute");
  if (type != kMemoryTypeHost && type != kMemoryTypeDevice) return pointer;
  pointer.type = type == kMemoryTypeDevice ? BPS_CUDA : BPS_CUDA_HOST;
  if (type == kMemoryTypeDevice) {
    int device = 0;
    BPS_CUDA_CALL(cuPointerGetAttribute, &device, kAttributeDeviceOrdinal, Address(address));
    pointer.id = device;
  }
  DevicePointer base = 0;
  size_t size = 0;
  BPS_CUDA_CALL(cuPointerGetAttribute, &base, kAttributeRangeStart, Address(address));
  BPS_CUDA_CALL(cuPointerGetAttribute, &size, kAttributeRangeSize, Address(address));
  pointer.base = reinterpret_cast<void*>(base);
  pointer.size = size;
  // Memory that is mapped piece by piece (cuMemMap; PyTorch's expandable segments) has no number to rely on: the range
  // is all that was reserved, and its pieces come and go without the range becoming another one.
  unsigned whole = 0;
  if (type == kMemoryTypeDevice) {
    BPS_CUDA_CALL(cuPointerGetAttribute, &whole, kAttributeIsOneAllocation, Address(address));
  }
  if (whole != 0) {
    unsigned long long identity = 0;
    BPS_CUDA_CALL(cuPointerGetAttribute, &identity, kAttributeBufferId, Address(address));
    pointer.identity = identity;
  }
  return pointer;
}

bps_device_stream Device::StreamCreate(int32_t urgent) {
  const Use use(*this);
  int least = 0, greatest = 0;  // CUDA: the smaller the number, the sooner
  BPS_CUDA_CALL(cuCtxGetStreamPriorityRange, &least, &greatest);
  StreamHandle stream = nullptr;
  BPS_CUDA_CALL(cuStreamCreateWithPriority, &stream, kStreamNonBlocking, std::clamp(-urgent, greatest, least));
  const std::lock_guard<std::mutex> lock(mutex_);
  own_.insert(stream);
  return stream;
}

void Device::StreamDestroy(bps_device_stream stream) {
  const Use use(*this);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (own_.erase(Of(stream)) == 0) throw Error(BPS_INVALID_ARGUMENT, "this stream was not made here");
  }
  BPS_CUDA_CALL(cuStreamDestroy_v2, Of(stream));
}

bps_device_stream_state Device::StreamState(bps_device_stream stream) {
  const Use use(*this);
  bps_device_stream_state state = {};
  BPS_CUDA_CALL(cuStreamIsCapturing, Of(stream), &state.capturing);
  state.capturing = state.capturing == kCaptureNone ? 0 : 1;
  Context context = nullptr;
  BPS_CUDA_CALL(cuStreamGetCtx, Of(stream), &context);
  const Use theirs(driver_, context);
  DeviceNumber number = 0;
  BPS_CUDA_CALL(cuCtxGetDevice, &number);
  for (state.id = 0; state.id < driver_.devices(); ++state.id) {
    if (NumberOf(driver_, state.id) == number) break;
  }
  return state;
}

void Device::StreamWait(bps_device_stream stream, bps_device_event* event) {
  const Use use(*this);
  BPS_CUDA_CALL(cuStreamWaitEvent, Of(stream), Of(event), 0);
}

bps_device_event* Device::EventCreate() {
  const Use use(*this);
  EventHandle event = nullptr;
  BPS_CUDA_CALL(cuEventCreate, &event, kEventDisableTiming);
  return reinterpret_cast<bps_device_event*>(event);
}

void Device::EventDestroy(bps_device_event* event) {
  const Use use(*this);
  BPS_CUDA_CALL(cuEventDestroy_v2, Of(event));
}

void Device::EventRecord(bps_device_event* event, bps_device_stream stream) {
  const Use use(*this);
  BPS_CUDA_CALL(cuEventRecord, Of(event), Of(stream));
}

bool Device::EventQuery(bps_device_event* event) {
  const Use use(*this);
  const Result result = driver_.cuEventQuery(Of(event));
  if (result == kNotReady) return false;
  driver_.Check(result, "cuEventQuery");
  return true;
}

void Device::CopyToHost(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  if (size == 0) return;
  const Use use(*this);
  BPS_CUDA_CALL(cuMemcpyDtoHAsync_v2, to, Address(from), size, Of(stream));
}

void Device::CopyToDevice(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  if (size == 0) return;
  const Use use(*this);
  BPS_CUDA_CALL(cuMemcpyHtoDAsync_v2, Address(to), from, size, Of(stream));
}

void Device::CopyWithin(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  if (size == 0) return;
  const Use use(*this);
  BPS_CUDA_CALL(cuMemcpyDtoDAsync_v2, Address(to), Address(from), size, Of(stream));
}

void Device::Fill(void* to, uint8_t byte, uint64_t size, bps_device_stream stream) {
  if (size == 0) return;
  const Use use(*this);
  BPS_CUDA_CALL(cuMemsetD8Async, Address(to), byte, size, Of(stream));
}

void Device::Synchronize(bps_device_stream stream) {
  const Use use(*this);
  BPS_CUDA_CALL(cuStreamSynchronize, Of(stream));
}

void Device::LoadKernels() {
  if (!why_no_kernels_.empty()) throw Error(BPS_UNIMPLEMENTED, why_no_kernels_);
  ModuleHandle loaded = nullptr;
  const Result result = driver_.cuModuleLoadData(&loaded, KernelImage());
  try {
    driver_.Check(result, "cuModuleLoadData");
    kernels_ = loaded;
    return;
  } catch (const Error& error) {
    if (!RefusesKernels(result)) throw;
    why_no_kernels_ = std::string(error.what()) + "; the kernels of this plugin need a driver of CUDA " +
                      CudaVersion(KernelToolkit()) + " or later, and this one is of CUDA " + driver_.version();
  }
  throw Error(BPS_UNIMPLEMENTED, why_no_kernels_);
}

FunctionHandle Device::KernelOf(const std::string& name) {
  if (KernelImage() == nullptr) {
    throw Error(BPS_UNIMPLEMENTED, "this plugin is built without its kernels (bazel build --config=cuda has them)");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  FunctionHandle& function = functions_[name];
  if (function != nullptr) return function;
  if (kernels_ == nullptr) LoadKernels();
  BPS_CUDA_CALL(cuModuleGetFunction, &function, kernels_, name.c_str());
  return function;
}

void Device::Launch(FunctionHandle kernel, uint64_t count, void* arguments, bps_device_stream stream) {
  void* parameters[] = {arguments};
  const auto blocks = static_cast<unsigned>(std::min<uint64_t>(kBlocks, (count + kThreads - 1) / kThreads));
  BPS_CUDA_CALL(cuLaunchKernel, kernel, blocks, 1, 1, kThreads, 1, 1, 0, Of(stream), parameters, nullptr);
}

void Device::Fold(void* to, const void* const* sources, uint32_t n, uint64_t count, uint32_t dtype, int32_t reduction,
                  bps_device_stream stream) {
  devices::CheckFold(dtype, reduction);
  if (n == 0) throw Error(BPS_INVALID_ARGUMENT, "a fold of no arrays");
  if (n > kFoldSources) {
    throw Error(BPS_UNIMPLEMENTED,
                "the kernel folds at most " + std::to_string(kFoldSources) + " arrays, not " + std::to_string(n));
  }
  const Use use(*this);
  const FunctionHandle kernel = KernelOf(std::string("bps_fold_") + NameOf(dtype));
  if (count == 0) return;
  FoldArguments arguments = {to, count, n, reduction, {}};
  std::copy(sources, sources + n, arguments.from);
  Launch(kernel, count, &arguments, stream);
}

void Device::Convert(void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype, uint64_t count, double factor,
                     bps_device_stream stream) {
  devices::CheckConvert(to_dtype, from_dtype);
  if (Attribute(kUsesAddressesOfRegistered) == 0) {
    throw Error(BPS_UNIMPLEMENTED, "this GPU cannot reach registered memory of the host by its address");
  }
  const Use use(*this);
  const FunctionHandle kernel = KernelOf(std::string("bps_convert_") + NameOf(from_dtype) + "_" + NameOf(to_dtype));
  if (count == 0) return;
  ConvertArguments arguments = {to, from, count, factor};
  Launch(kernel, count, &arguments, stream);
}

int Device::Attribute(int attribute) const {
  int value = 0;
  // Drivers that are older than an attribute do not know it.
  return driver_.cuDeviceGetAttribute(&value, attribute, number_) == kSuccess ? value : 0;
}

void Device::FlushRemote() {
  Remote remote = remote_.load();
  if (remote == Remote::kUnknown) {
    remote = Remote::kNone;
    const bool flushes = (Attribute(kRemoteFlushOptions) & kRemoteFlushByHost) != 0;
    if (Attribute(kRemoteAccessSupported) != 0) {
      if (driver_.cuFlushGPUDirectRDMAWrites != nullptr && flushes) remote = Remote::kFlush;
      if (Attribute(kRemoteWritesOrdering) >= kRemoteWritesOrderedForOwner) remote = Remote::kOrdered;
    }
    remote_ = remote;
  }
  if (remote == Remote::kNone) {
    throw Error(BPS_UNIMPLEMENTED, "the driver gives network cards no access to its memory (GPUDirect RDMA)");
  }
  if (remote == Remote::kOrdered) return;
  const Use use(*this);
  BPS_CUDA_CALL(cuFlushGPUDirectRDMAWrites, kRemoteFlushCurrentContext, kRemoteFlushToOwner);
}

int32_t Device::DmaBuf(const void* base, uint64_t size) {
  if (driver_.cuMemGetHandleForAddressRange == nullptr || Attribute(kDmaBufSupported) == 0) {
    throw Error(BPS_UNIMPLEMENTED, "the driver makes no dma-buf of its memory");
  }
  const Use use(*this);
  int descriptor = -1;
  BPS_CUDA_CALL(cuMemGetHandleForAddressRange, &descriptor, Address(base), size, kRangeAsDmaBuf, 0);
  return descriptor;
}

#undef BPS_CUDA_CALL

bps_device_facts FactsOf(const Driver& driver, int32_t index) {
  // Kept: the caller may use the text as long as the process lives.
  static std::mutex mutex;
  static auto* texts = new std::set<std::string>;
  const DeviceNumber number = NumberOf(driver, index);
  char name[256] = "", pci[32] = "";
  size_t memory = 0;
  bps_device_facts facts = {};
  driver.Check(driver.cuDeviceGetName(name, sizeof name, number), "cuDeviceGetName");
  driver.Check(driver.cuDeviceGetPCIBusId(pci, sizeof pci, number), "cuDeviceGetPCIBusId");
  driver.Check(driver.cuDeviceTotalMem_v2(&memory, number), "cuDeviceTotalMem");
  driver.Check(driver.cuDeviceGetAttribute(&facts.major, kComputeCapabilityMajor, number), "cuDeviceGetAttribute");
  driver.Check(driver.cuDeviceGetAttribute(&facts.minor, kComputeCapabilityMinor, number), "cuDeviceGetAttribute");
  const std::lock_guard<std::mutex> lock(mutex);
  facts.name = texts->insert(name).first->c_str();
  facts.pci = texts->insert(pci).first->c_str();
  facts.memory = memory;
  return facts;
}

}  // namespace byteps::cuda
