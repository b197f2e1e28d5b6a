// device.h - one fake GPU behind abi/device.h, as one user of this process sees it.
//
// Threads: any. Errors: throws Error.
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_DEVICE_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include "abi/device.h"
#include "device_plugins/fake/machine.h"

namespace byteps::fake {

class Device {
 public:
  Device(std::shared_ptr<Machine> machine, int32_t index);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

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

  const std::shared_ptr<Machine>& machine() const { return machine_; }
  int index() const { return index_; }

 private:
  // A stream of this device that takes work.
  Stream* Of(bps_device_stream stream);

  const std::shared_ptr<Machine> machine_;
  const int index_;
  std::mutex mutex_;
  std::set<Stream*> own_;  // made here
};

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_DEVICE_H_
