// gpu_comm.h - one GPU's place among those of other processes: the collectives of abi/device.h.
//
//     absl::StatusOr<std::string> id = GpuComm::NewId(*gpu, config);          // one member; the others are told
//     absl::StatusOr<std::unique_ptr<GpuComm>> comm = GpuComm::Join(gpu, *id, rank, size, 0);
//     if (*comm->Ready()) ...                                                 // ask until it is
//     comm->Begin();  comm->AllReduce(...);  comm->End();                     // then ask Ready again
//
// The verbs are those of abi/device.h, which has their contract. Errors name the device, and what was asked. The
// destructor ends it at once, whatever is under way; Leave in order.
//
// Threads: one at a time. Ownership: keeps its GPU alive.
#ifndef BYTEPS_CORE_PLUGIN_GPU_COMM_H_
#define BYTEPS_CORE_PLUGIN_GPU_COMM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "abi/device.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/gpu.h"
#include "core/plugin/plugin_host.h"

namespace byteps {

class GpuComm {
 public:
  // UNIMPLEMENTED: the plugin has no collectives.
  static absl::StatusOr<std::string> NewId(const Gpu& gpu, const PluginConfig* config);
  static absl::StatusOr<std::unique_ptr<GpuComm>> Join(std::shared_ptr<Gpu> gpu, const std::string& id, int32_t rank,
                                                       int32_t size, int32_t max_blocks);
  GpuComm(const GpuComm&) = delete;
  GpuComm& operator=(const GpuComm&) = delete;
  ~GpuComm();

  // May something be put in? An error is final.
  absl::StatusOr<bool> Ready();
  // Waits for what was put in. Nothing may follow but the destructor.
  void Leave();
  absl::Status Begin();
  absl::Status End();
  absl::Status ReduceScatter(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                             bps_device_stream stream);
  absl::Status AllGather(const void* from, void* to, uint64_t count, uint32_t dtype, bps_device_stream stream);
  absl::Status AllReduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                         bps_device_stream stream);
  absl::Status Reduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction, int32_t root,
                      bps_device_stream stream);
  absl::Status Send(const void* from, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream);
  absl::Status Receive(void* to, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream);
  absl::Status Broadcast(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t root,
                         bps_device_stream stream);

 private:
  GpuComm(std::shared_ptr<Gpu> gpu, bps_device_comm* comm)
      : gpu_(std::move(gpu)), table_(gpu_->collectives()), comm_(comm) {}

  template <typename Function>
  absl::Status Call(const char* verb, const char* what, const Function& function);

  const std::shared_ptr<Gpu> gpu_;
  const bps_device_collectives* const table_;
  bps_device_comm* comm_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_GPU_COMM_H_
