// device.h - one GPU behind abi/device.h: its primary context, the one that frameworks use.
//
// Each call makes that context current on its thread and puts back what was, and keeps stream captures of other threads
// undisturbed.
//
// Threads: any. Errors: throws Error.
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_DEVICE_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "abi/device.h"
#include "device_plugins/cuda/driver.h"

namespace byteps::cuda {

class Device {
 public:
  // Makes its context current on this thread, as long as it lives; then what was.
  class Use {
   public:
    explicit Use(const Device& device);
    Use(const Driver& driver, Context context);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const Driver& driver_;
    int mode_;
  };

  Device(const Driver& driver, int32_t index);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  // Where NCCL is sought for it (BYTEPS_NCCL_HOME).
  void UseNcclHome(std::string home) { nccl_home_ = std::move(home); }
  const std::string& nccl_home() const { return nccl_home_; }

  void* Allocate(uint64_t size);
  void Release(void* base);
  void* AllocateHost(uint64_t size);
  void ReleaseHost(void* base);
  void RegisterHost(void* base, uint64_t size);
  void UnregisterHost(void* base);
  bps_device_pointer Pointer(const void* address);
  bps_device_stream StreamCreate(int32_t urgent);
  void StreamDestroy(bps_device_stream stream);
  bps_device_stream_state StreamState(bps_device_stream stream);
  void StreamWait(bps_device_stream stream, bps_device_event* event);
  bps_device_event* EventCreate();
  void EventDestroy(bps_device_event* event);
  void EventRecord(bps_device_event* event, bps_device_stream stream);
  bool EventQuery(bps_device_event* event);
  void CopyToHost(void* to, const void* from, uint64_t size, bps_device_stream stream);
  void CopyToDevice(void* to, const void* from, uint64_t size, bps_device_stream stream);
  void CopyWithin(void* to, const void* from, uint64_t size, bps_device_stream stream);
  void Fill(void* to, uint8_t byte, uint64_t size, bps_device_stream stream);
  void Synchronize(bps_device_stream stream);
  void Fold(void* to, const void* const* sources, uint32_t n, uint64_t count, uint32_t dtype, int32_t reduction,
            bps_device_stream stream);
  void Convert(void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype, uint64_t count, double factor,
               bps_device_stream stream);
  void FlushRemote();
  int32_t DmaBuf(const void* base, uint64_t size);

 private:
  int Attribute(int attribute) const;
  // The kernel of this name, loaded with the first. UNIMPLEMENTED: this build has none, or none for this driver.
  FunctionHandle KernelOf(const std::string& name);
  void LoadKernels();
  void Launch(FunctionHandle kernel, uint64_t count, void* arguments, bps_device_stream stream);

  const Driver& driver_;
  const int32_t index_;
  DeviceNumber number_ = 0;
  Context context_ = nullptr;
  std::string nccl_home_;
  std::mutex mutex_;
  std::set<StreamHandle> own_;  // made here
  // How what network cards write is ordered before later work.
  enum class Remote { kUnknown, kNone, kOrdered, kFlush };
  std::atomic<Remote> remote_{Remote::kUnknown};
  ModuleHandle kernels_ = nullptr;
  std::string why_no_kernels_;  // the driver takes none of them: it is not asked again
  std::map<std::string, FunctionHandle> functions_;
};

// What there is to say of a device, for people. Throws Error.
bps_device_facts FactsOf(const Driver& driver, int32_t index);

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_DEVICE_H_
