// comm.h - one GPU's place in an NCCL communicator, behind the collectives of abi/device.h.
//
//     NcclUniqueId id = NewId(home);                    // loads NCCL
//     Comm comm(&device, home, id, rank, size, 0);      // goes on in the background: State tells
//
// Communicators do not block: NCCL's calls go on by themselves, and State asks. No call waits for another member.
//
// Threads: calls for one comm come one at a time. Errors: throws Error; NCCL's own text is in it.
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_COMM_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_COMM_H_

#include <cstdint>
#include <string>

#include "abi/device.h"
#include "device_plugins/cuda/device.h"
#include "device_plugins/cuda/nccl_api.h"

namespace byteps::cuda {

// NCCL as it was found first; UNAVAILABLE (there is none), FAILED_PRECONDITION (too old, or a function is missing).
const NcclFunctions& GetNccl(const std::string& home);

class Comm {
 public:
  Comm(const Device* device, const NcclFunctions& nccl, const bps_device_join_args& args);
  // Aborts, unless Leave came before.
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  bool State();
  void Leave();
  void Begin();
  void End();
  void ReduceScatter(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                     bps_device_stream stream);
  void AllGather(const void* from, void* to, uint64_t count, uint32_t dtype, bps_device_stream stream);
  void AllReduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                 bps_device_stream stream);
  void Reduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction, int32_t root,
              bps_device_stream stream);
  void Broadcast(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t root, bps_device_stream stream);
  void Send(const void* from, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream);
  void Receive(void* to, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream);

 private:
  // Throws unless it went well, or goes on.
  void Check(NcclResult result, const char* call) const;

  const Device& device_;
  const NcclFunctions& nccl_;
  NcclComm comm_ = nullptr;
};

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_COMM_H_
