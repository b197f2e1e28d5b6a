// gpu_operation.h - an operation of a framework's kernel on the memory of a GPU, ordered by the kernel's stream.
//
//     const Outcome outcome = PushPullOnGpu(TheSession(), {"layer1.weight", BPS_FLOAT32, shape, 2}, {gpu, stream},
//                                           input, output, BPS_AVERAGE, priority);
//
// The input is read behind what the stream holds at the call. When the call returns, what is put into the stream from
// then on sees the result; or the operation has ended with an error. In both cases the library uses the memory no more,
// but for what is in the stream's order. The host waits until the stream has come to the operation and the result has
// come over the network; it waits for no copy of the result.
//
// Threads: any. The session may be closed meanwhile.
#ifndef BYTEPS_FRAMEWORKS_COMMON_GPU_OPERATION_H_
#define BYTEPS_FRAMEWORKS_COMMON_GPU_OPERATION_H_

#include <cstdint>

#include "frameworks/common/attached_session.h"
#include "frameworks/common/collective.h"
#include "frameworks/common/operation.h"

namespace byteps::binding {

struct GpuPlace {
  int32_t gpu;   // its number in this process, as CUDA counts
  void* stream;  // CUstream, of that GPU
};

// As PushPull of operation.h; input and output lie in the memory of one GPU. Tensors without elements may have no
// memory.
Outcome PushPullOnGpu(const AttachedSession& session, const TensorSpec& tensor, const GpuPlace& place,
                      const void* input, void* output, int32_t op, int64_t priority);

// Likewise of Broadcast.
Outcome BroadcastOnGpu(const AttachedSession& session, const TensorSpec& tensor, const GpuPlace& place,
                       const void* input, void* output, int32_t root, int64_t priority);

// Likewise of Collective (collective.h); `spec` names an output, unless there is nothing to get. `bytes` receives how
// many have come.
Outcome CollectiveOnGpu(const AttachedSession& session, const CollectiveSpec& spec, const GpuPlace& place,
                        uint64_t* bytes);

}  // namespace byteps::binding

#endif  // BYTEPS_FRAMEWORKS_COMMON_GPU_OPERATION_H_
