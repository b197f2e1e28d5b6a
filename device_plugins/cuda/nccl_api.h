// nccl_api.h - what this plugin uses of NCCL's interface, declared by itself: it is built without NCCL, and NCCL is
// found at run time. As nccl.h of 2.18 and later has it.
#ifndef BYTEPS_DEVICE_PLUGINS_CUDA_NCCL_API_H_
#define BYTEPS_DEVICE_PLUGINS_CUDA_NCCL_API_H_

#include <climits>
#include <cstddef>

#include "device_plugins/cuda/driver_api.h"

// The tag of nccl.h.
struct ncclComm;

namespace byteps::cuda {

using NcclComm = ncclComm*;
using NcclResult = int;  // ncclResult_t

// The earliest that has all of this: 2.18.
inline constexpr int kOldestNccl = 21800;

// ncclResult_t.
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclSystemError = 2;
inline constexpr NcclResult kNcclInvalidArgument = 4;
inline constexpr NcclResult kNcclInvalidUsage = 5;
inline constexpr NcclResult kNcclRemoteError = 6;
inline constexpr NcclResult kNcclInProgress = 7;

// ncclDataType_t.
inline constexpr int kNcclInt8 = 0;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kNcclInt32 = 2;
inline constexpr int kNcclInt64 = 4;
inline constexpr int kNcclFloat16 = 6;
inline constexpr int kNcclFloat32 = 7;
inline constexpr int kNcclFloat64 = 8;
inline constexpr int kNcclBfloat16 = 9;

// ncclRedOp_t.
inline constexpr int kNcclSum = 0;
inline constexpr int kNcclProd = 1;
inline constexpr int kNcclMax = 2;
inline constexpr int kNcclMin = 3;
inline constexpr int kNcclAvg = 4;

struct NcclUniqueId {
  char bytes[128];
};

// The beginning of ncclConfig_t, as 2.17 had it: later versions take what the size and the version say.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21700;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // not set
  int min_blocks = INT_MIN;
  int max_blocks = INT_MIN;
  const char* net_name = nullptr;
};

#define BPS_NCCL_FUNCTIONS(X)                                                                        \
  X(ncclGetVersion, NcclResult (*)(int*))                                                            \
  X(ncclGetUniqueId, NcclResult (*)(NcclUniqueId*))                                                  \
  X(ncclCommInitRankConfig, NcclResult (*)(NcclComm*, int, NcclUniqueId, int, NcclConfig*))          \
  X(ncclCommFinalize, NcclResult (*)(NcclComm))                                                      \
  X(ncclCommDestroy, NcclResult (*)(NcclComm))                                                       \
  X(ncclCommAbort, NcclResult (*)(NcclComm))                                                         \
  X(ncclCommGetAsyncError, NcclResult (*)(NcclComm, NcclResult*))                                    \
  X(ncclGetErrorString, const char* (*)(NcclResult))                                                 \
  X(ncclGetLastError, const char* (*)(NcclComm))                                                     \
  X(ncclGroupStart, NcclResult (*)())                                                                \
  X(ncclGroupEnd, NcclResult (*)())                                                                  \
  X(ncclReduceScatter, NcclResult (*)(const void*, void*, size_t, int, int, NcclComm, StreamHandle)) \
  X(ncclAllGather, NcclResult (*)(const void*, void*, size_t, int, NcclComm, StreamHandle))          \
  X(ncclAllReduce, NcclResult (*)(const void*, void*, size_t, int, int, NcclComm, StreamHandle))     \
  X(ncclReduce, NcclResult (*)(const void*, void*, size_t, int, int, int, NcclComm, StreamHandle))   \
  X(ncclBroadcast, NcclResult (*)(const void*, void*, size_t, int, int, NcclComm, StreamHandle))     \
  X(ncclSend, NcclResult (*)(const void*, size_t, int, int, NcclComm, StreamHandle))                 \
  X(ncclRecv, NcclResult (*)(void*, size_t, int, int, NcclComm, StreamHandle))

// NCCL's functions, found by name.
struct NcclFunctions {
  template <typename Pointer>
  using FunctionPointer = Pointer;
#define BPS_NCCL_MEMBER(name, ...) FunctionPointer<__VA_ARGS__> name = nullptr;
  BPS_NCCL_FUNCTIONS(BPS_NCCL_MEMBER)
#undef BPS_NCCL_MEMBER
};

}  // namespace byteps::cuda

#endif  // BYTEPS_DEVICE_PLUGINS_CUDA_NCCL_API_H_
