// gpu.h - owns one GPU of a device plugin.
//
//     absl::StatusOr<std::unique_ptr<Gpu>> gpu = Gpu::Open(plugin, 0, config, log);
//     absl::Status status = (*gpu)->EventRecord(event, stream);
//
// The verbs are those of abi/device.h, which has their contract. Errors name the device: "GPU 0 (NVIDIA H200): ...".
// What the thread that drives the session calls is watched (core/plugin/watched_thread.h).
//
// Threads: any. Ownership: what was made of it (streams, events, memory) is given back before it is destroyed.
#ifndef BYTEPS_CORE_PLUGIN_GPU_H_
#define BYTEPS_CORE_PLUGIN_GPU_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "abi/device.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"
#include "core/plugin/plugin_calls.h"
#include "core/plugin/plugin_host.h"
#include "core/plugin/watched_thread.h"

namespace byteps {

class Logger;

// A call of a device plugin, which may last for ever. `title` outlives it.
template <typename Function>
auto WatchedCall(const std::string& title, const char* verb, const Function& function) {
  const PluginCalls::Scope scope(WatchedThread::calls(), title.c_str(), verb);
  return function();
}

class Gpu {
 public:
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const bps_device_plugin& plugin, int32_t index,
                                                   const PluginConfig* config, const Logger* log);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  int32_t index() const { return index_; }
  // "GPU 0 (NVIDIA H200)"
  const std::string& name() const { return name_; }
  // "0000:1b:00.0"; empty: not known
  const std::string& pci() const { return pci_; }
  // What GPUs of several processes do together; nullptr: nothing.
  const bps_device_collectives* collectives() const { return collectives_; }
  bps_device* handle() const { return handle_; }
  // `device plugin "cuda"`, for people.
  const std::string& title() const { return title_; }
  static std::string TitleOf(const bps_device_plugin& plugin);

  absl::StatusOr<void*> Allocate(uint64_t size);
  absl::Status Release(void* base);
  absl::StatusOr<void*> AllocateHost(uint64_t size);
  absl::Status ReleaseHost(void* base);
  absl::Status RegisterHost(void* base, uint64_t size);
  absl::Status UnregisterHost(void* base);
  absl::StatusOr<bps_device_pointer> Pointer(const void* address);
  absl::StatusOr<bps_device_stream> StreamCreate(int32_t urgent);
  absl::Status StreamDestroy(bps_device_stream stream);
  absl::StatusOr<bps_device_stream_state> StreamState(bps_device_stream stream);
  absl::Status StreamWait(bps_device_stream stream, bps_device_event* event);
  absl::StatusOr<bps_device_event*> EventCreate();
  void EventDestroy(bps_device_event* event);
  absl::Status EventRecord(bps_device_event* event, bps_device_stream stream);
  // Has what it waits for ended?
  absl::StatusOr<bool> EventQuery(bps_device_event* event);
  absl::Status CopyToHost(void* to, const void* from, uint64_t size, bps_device_stream stream);
  absl::Status CopyToDevice(void* to, const void* from, uint64_t size, bps_device_stream stream);
  absl::Status Fill(void* to, uint8_t byte, uint64_t size, bps_device_stream stream);
  absl::Status CopyWithin(void* to, const void* from, uint64_t size, bps_device_stream stream);
  // Blocks.
  absl::Status Synchronize(bps_device_stream stream);
  // UNIMPLEMENTED: the plugin, or its build, has no such kernel. A count of 0 only asks.
  absl::Status Fold(void* to, std::span<const void* const> sources, uint64_t count, uint32_t dtype, int32_t reduction,
                    bps_device_stream stream);
  // to[i] = from[i] x factor, as another data type; one of both may be pinned. UNIMPLEMENTED: likewise. A count of 0
  // only asks.
  absl::Status Convert(void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype, uint64_t count,
                       double factor, bps_device_stream stream);
  // What network cards have written is seen by later work. UNIMPLEMENTED: they have no access to its memory.
  absl::Status FlushRemote();
  // A dma-buf of a whole allocation. UNIMPLEMENTED: the driver gives none.
  absl::StatusOr<UniqueFd> DmaBuf(void* base, uint64_t size);

 private:
  Gpu(const bps_device_plugin& plugin, bps_device* handle, int32_t index, std::string name, std::string pci);

  template <typename Function>
  auto Watched(const char* verb, const Function& function) {
    return WatchedCall(title_, verb, function);
  }
  // Calls a verb of the table; what it makes is written through `out` by the caller.
  template <typename Function>
  absl::Status Call(const char* verb, const char* what, const Function& function);

  const bps_device_table* const table_;
  bps_device* const handle_;
  const int32_t index_;
  const std::string name_;
  const std::string pci_;
  const std::string title_;
  const bps_device_collectives* const collectives_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_GPU_H_
