#include "frameworks/jax/native/gpu_memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace byteps::jax {
namespace {

namespace ffi = xla::ffi;

// As cuda.h has them.
using Result = int;
using Address = unsigned long long;
constexpr Result kSuccess = 0;
constexpr int kAttributeDeviceOrdinal = 9;
constexpr unsigned kPortable = 1;  // for every context

constexpr size_t kBlock = 4096;

struct Driver {
  std::string missing;  // why it cannot be used; empty: it can
  Result (*cuGetErrorName)(Result, const char**) = nullptr;
  Result (*cuStreamGetCtx)(void*, void**) = nullptr;
  Result (*cuCtxPushCurrent_v2)(void*) = nullptr;
  Result (*cuCtxPopCurrent_v2)(void**) = nullptr;
  Result (*cuPointerGetAttribute)(void*, int, Address) = nullptr;
  Result (*cuMemHostAlloc)(void**, size_t, unsigned) = nullptr;
  Result (*cuMemcpyDtoHAsync_v2)(void*, Address, size_t, void*) = nullptr;
  Result (*cuStreamSynchronize)(void*) = nullptr;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      missing = dlerror();
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) missing = std::string("libcuda.so.1 lacks ") + name;
    };
    find(cuGetErrorName, "cuGetErrorName");
    find(cuStreamGetCtx, "cuStreamGetCtx");
    find(cuCtxPushCurrent_v2, "cuCtxPushCurrent_v2");
    find(cuCtxPopCurrent_v2, "cuCtxPopCurrent_v2");
    find(cuPointerGetAttribute, "cuPointerGetAttribute");
    find(cuMemHostAlloc, "cuMemHostAlloc");
    find(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync_v2");
    find(cuStreamSynchronize, "cuStreamSynchronize");
  }
};

// Never destroyed: threads of XLA may outlive main().
const Driver& TheDriver() {
  static const auto* const kDriver = new Driver;
  return *kDriver;
}

ffi::Error Failed(const char* what, Result result) {
  const char* name = nullptr;
  TheDriver().cuGetErrorName(result, &name);
  return ffi::Error::Internal(std::string("byteps.jax: the NVIDIA driver answers ") + what + " with " +
                              (name != nullptr ? name : std::to_string(result)));
}

// Calls `call(driver)` in the context of the stream's GPU.
template <typename F>
ffi::Error InContext(void* stream, F call) {
  const Driver& driver = TheDriver();
  if (!driver.missing.empty()) {
    return ffi::Error(ffi::ErrorCode::kUnavailable,
                      "byteps.jax cannot use the NVIDIA driver for an array on a GPU: " + driver.missing);
  }
  void* context = nullptr;
  if (const Result result = driver.cuStreamGetCtx(stream, &context); result != kSuccess) {
    return Failed("cuStreamGetCtx", result);
  }
  if (const Result result = driver.cuCtxPushCurrent_v2(context); result != kSuccess) {
    return Failed("cuCtxPushCurrent", result);
  }
  ffi::Error error = call(driver);
  driver.cuCtxPopCurrent_v2(&context);
  return error;
}

// Pinned memory for one copy at a time. Blocks are used again and never freed. A lock is held for no copy: the stream
// may wait for another GPU of this process, whose thread comes here, too.
class PinnedBlock {
 public:
  PinnedBlock() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return;
    data_ = free_.back();
    free_.pop_back();
  }
  ~PinnedBlock() {
    const std::lock_guard lock(mutex_);
    if (data_ != nullptr) free_.push_back(data_);
  }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  Result Fill(const Driver& driver) {
    return data_ != nullptr ? kSuccess : driver.cuMemHostAlloc(&data_, kBlock, kPortable);
  }
  void* data() const { return data_; }

 private:
  static std::mutex mutex_;
  static std::vector<void*>& free_;
  void* data_ = nullptr;
};

std::mutex PinnedBlock::mutex_;
std::vector<void*>& PinnedBlock::free_ = *new std::vector<void*>;

Address AddressOf(const void* memory) { return reinterpret_cast<Address>(memory); }

}  // namespace

ffi::ErrorOr<int32_t> GpuOf(void* stream, const void* address) {
  int32_t gpu = 0;
  ffi::Error error = InContext(stream, [&](const Driver& driver) {
    const Result result = driver.cuPointerGetAttribute(&gpu, kAttributeDeviceOrdinal, AddressOf(address));
    return result == kSuccess ? ffi::Error() : Failed("cuPointerGetAttribute", result);
  });
  if (error.failure()) return ffi::Unexpected(std::move(error));
  return gpu;
}

ffi::Error ReadGpuMemory(void* stream, const void* from, size_t bytes, void* to) {
  return InContext(stream, [&](const Driver& driver) {
    PinnedBlock block;
    if (const Result result = block.Fill(driver); result != kSuccess) return Failed("cuMemHostAlloc", result);
    for (size_t done = 0; done < bytes; done += kBlock) {
      const size_t part = std::min(kBlock, bytes - done);
      const Address at = AddressOf(from) + done;
      if (const Result result = driver.cuMemcpyDtoHAsync_v2(block.data(), at, part, stream); result != kSuccess) {
        return Failed("cuMemcpyDtoHAsync", result);
      }
      if (const Result result = driver.cuStreamSynchronize(stream); result != kSuccess) {
        return Failed("cuStreamSynchronize", result);
      }
      std::memcpy(static_cast<char*>(to) + done, block.data(), part);
    }
    return ffi::Error();
  });
}

}  // namespace byteps::jax
