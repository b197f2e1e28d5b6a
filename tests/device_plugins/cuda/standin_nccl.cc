// standin_nccl.cc - a libnccl.so.2 whose collectives are those of the fake GPUs: what calls NCCL runs on it as on NCCL.
//
// It is at home beside standin_driver.cc: communicators belong to the context that is current, as with NCCL, and meet
// between processes. Stricter than NCCL: a call in another context, outside of a group or on a communicator that has
// failed is an error. Only communicators that do not block are made, as this library asks for.
//
// STANDIN_NCCL_VERSION: which version it says it is. STANDIN_NCCL_JOIN: what ncclCommInitRankConfig answers, with a
// communicator that can only be aborted. standin_nccl_communicators: how many there are.
// STANDIN_NCCL_STALL=N: from unit N on (0: joining) a communicator of this process gets no further, and says so to
// nobody. STANDIN_NCCL_ERROR=N: likewise, with the asynchronous error of a peer that is gone.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "abi/device.h"
#include "device_plugins/cuda/nccl_api.h"

struct ncclComm {
  ncclComm() { ++there_are; }
  ~ncclComm() { --there_are; }
  static inline std::atomic<int> there_are{0};

  bps_device_comm* inside = nullptr;
  byteps::cuda::Context context = nullptr;
  int units = 0;
  bool failed = false;
};

namespace byteps::cuda {
namespace {

constexpr NcclResult kNcclInternalError = 3;

thread_local std::string last_error;
// What ncclGroupStart has opened on this thread.
thread_local int depth = 0;
thread_local std::vector<NcclComm> grouped;

int32_t KeepReason(bps_failure*, int32_t code, const char* reason) {
  last_error = reason;
  return code;
}

bps_failure* Failure() { return reinterpret_cast<bps_failure*>(&last_error); }

struct StandIn {
  const bps_device_collectives* collectives = nullptr;
  Result (*current)(Context*) = nullptr;
};

// The fake GPUs are those of the stand-in driver, which this process has loaded.
const StandIn& Fake() {
  static const StandIn found = [] {
    StandIn made;
    void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return made;
    auto* entry = reinterpret_cast<bps_device_plugin_fn>(::dlsym(driver, "bps_device_plugin_v1_fake"));
    made.current = reinterpret_cast<Result (*)(Context*)>(::dlsym(driver, "cuCtxGetCurrent"));
    static bps_plugin_host host = {};
    host.struct_size = sizeof host;
    host.fail = KeepReason;
    const bps_device_plugin* plugin = nullptr;
    if (entry != nullptr && entry(&host, &plugin) == BPS_OK) made.collectives = plugin->collectives;
    return made;
  }();
  return found;
}

int Number(const char* variable, int fallback) {
  const char* value = std::getenv(variable);
  return value == nullptr ? fallback : std::atoi(value);
}

NcclResult Failed(NcclResult result, const std::string& why) {
  last_error = why;
  return result;
}

NcclResult Code(int32_t code) {
  switch (code) {
    case BPS_OK:
      return kNcclSuccess;
    case BPS_DEVICE_NOT_READY:
      return kNcclInProgress;
    case BPS_INVALID_ARGUMENT:
    case BPS_UNIMPLEMENTED:
      return kNcclInvalidArgument;
    case BPS_FAILED_PRECONDITION:
      return kNcclInvalidUsage;
    case BPS_UNAVAILABLE:
      return kNcclRemoteError;
    default:
      return kNcclInternalError;
  }
}

// Is this communicator's context the current one?
bool Current(NcclComm comm) {
  Context now = nullptr;
  return Fake().current(&now) == kSuccess && now == comm->context;
}

uint32_t TypeOf(int type) {
  switch (type) {
    case kNcclInt8:
      return BPS_INT8;
    case kNcclUint8:
      return BPS_UINT8;
    case kNcclInt32:
      return BPS_INT32;
    case kNcclInt64:
      return BPS_INT64;
    case kNcclFloat16:
      return BPS_FLOAT16;
    case kNcclFloat32:
      return BPS_FLOAT32;
    case kNcclFloat64:
      return BPS_FLOAT64;
    case kNcclBfloat16:
      return BPS_BFLOAT16;
    default:
      return 0;
  }
}

int32_t ReductionOf(int reduction) {
  switch (reduction) {
    case kNcclSum:
      return BPS_SUM;
    case kNcclProd:
      return BPS_PRODUCT;
    case kNcclMax:
      return BPS_MAX;
    case kNcclMin:
      return BPS_MIN;
    case kNcclAvg:
      return BPS_AVERAGE;
    default:
      return -1;
  }
}

// A collective, within the group of this thread.
template <typename Function>
NcclResult Put(NcclComm comm, const Function& function) {
  if (depth == 0) return Failed(kNcclInvalidUsage, "outside of ncclGroupStart and ncclGroupEnd");
  if (comm->failed) return Failed(kNcclInvalidUsage, "the communicator has failed: it can only be aborted");
  if (!Current(comm)) return Failed(kNcclInvalidUsage, "another context is current than the communicator's");
  if (std::find(grouped.begin(), grouped.end(), comm) == grouped.end()) {
    if (const int32_t code = Fake().collectives->begin(comm->inside, Failure()); code != BPS_OK) return Code(code);
    grouped.push_back(comm);
  }
  return Code(function(*Fake().collectives, comm->inside));
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int standin_nccl_communicators() { return ncclComm::there_are; }
EXPORT NcclResult ncclGetVersion(int* version) {
  *version = Number("STANDIN_NCCL_VERSION", 22809);
  return kNcclSuccess;
}
EXPORT const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case kNcclInvalidArgument:
      return "invalid argument";
    case kNcclInvalidUsage:
      return "invalid usage";
    case kNcclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "error";
  }
}
EXPORT const char* ncclGetLastError(NcclComm) { return last_error.c_str(); }

EXPORT NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  if (Fake().collectives == nullptr) return Failed(kNcclSystemError, "no stand-in driver is loaded");
  return Code(Fake().collectives->unique_id(nullptr, reinterpret_cast<uint8_t*>(id->bytes), Failure()));
}
EXPORT NcclResult ncclCommInitRankConfig(NcclComm* comm, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  if (Fake().collectives == nullptr) return Failed(kNcclSystemError, "no stand-in driver is loaded");
  if (config->size < sizeof *config || config->magic != 0xcafebeef || config->version < 21700) {
    return Failed(kNcclInvalidArgument, "not what NCCL_CONFIG_INITIALIZER makes");
  }
  if (config->blocking != 0) return Failed(kNcclInvalidArgument, "this stand-in makes no communicators that block");
  Context now = nullptr;
  if (Fake().current(&now) != kSuccess || now == nullptr) return Failed(kNcclInvalidUsage, "no context is current");
  if (const NcclResult told = Number("STANDIN_NCCL_JOIN", kNcclSuccess); told != kNcclSuccess) {
    *comm = new ncclComm;
    (*comm)->failed = true;
    return Failed(told, "as STANDIN_NCCL_JOIN wants it");
  }
  bps_device_join_args args = {};
  args.struct_size = sizeof args;
  args.id = reinterpret_cast<const uint8_t*>(id.bytes);
  args.rank = rank;
  args.size = size;
  *comm = new ncclComm;
  (*comm)->context = now;
  // The stand-in driver's contexts are the fake's devices.
  const int32_t code = Fake().collectives->join(reinterpret_cast<bps_device*>(now), &args, &(*comm)->inside, Failure());
  if (code == BPS_OK) return kNcclInProgress;
  delete *comm;
  *comm = nullptr;
  return Code(code);
}
EXPORT NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* state) {
  if (comm->units >= Number("STANDIN_NCCL_STALL", INT_MAX)) return *state = kNcclInProgress, kNcclSuccess;
  if (comm->units >= Number("STANDIN_NCCL_ERROR", INT_MAX)) {
    comm->failed = true;
    return *state = Failed(kNcclRemoteError, "as STANDIN_NCCL_ERROR wants it"), kNcclSuccess;
  }
  *state = Code(Fake().collectives->state(comm->inside, Failure()));
  comm->failed = *state != kNcclSuccess && *state != kNcclInProgress;
  return kNcclSuccess;
}
EXPORT NcclResult ncclCommFinalize(NcclComm) { return kNcclSuccess; }
EXPORT NcclResult ncclCommDestroy(NcclComm comm) {
  if (comm->inside != nullptr) Fake().collectives->leave(comm->inside);
  delete comm;
  return kNcclSuccess;
}
EXPORT NcclResult ncclCommAbort(NcclComm comm) {
  if (comm->inside != nullptr) Fake().collectives->abort(comm->inside);
  delete comm;
  return kNcclSuccess;
}

EXPORT NcclResult ncclGroupStart() { return ++depth, kNcclSuccess; }
EXPORT NcclResult ncclGroupEnd() {
  if (depth == 0) return Failed(kNcclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--depth != 0) return kNcclSuccess;
  NcclResult result = grouped.empty() ? kNcclSuccess : kNcclInProgress;
  for (NcclComm comm : std::exchange(grouped, {})) {
    ++comm->units;
    if (comm->units >= std::min(Number("STANDIN_NCCL_STALL", INT_MAX), Number("STANDIN_NCCL_ERROR", INT_MAX))) {
      // The last unit meets none of the others' either: their GPUs wait for it.
      if (comm->inside != nullptr) Fake().collectives->abort(std::exchange(comm->inside, nullptr));
      continue;
    }
    if (const int32_t code = Fake().collectives->end(comm->inside, Failure()); code != BPS_OK) result = Code(code);
  }
  return result;
}

EXPORT NcclResult ncclReduceScatter(const void* from, void* to, size_t count, int type, int reduction, NcclComm comm,
                                    StreamHandle stream) {
  return Put(comm, [&](const bps_device_collectives& all, bps_device_comm* inside) {
    return all.reduce_scatter(inside, from, to, count, TypeOf(type), ReductionOf(reduction), stream, Failure());
  });
}
EXPORT NcclResult ncclAllGather(const void* from, void* to, size_t count, int type, NcclComm comm,
                                StreamHandle stream) {
  return Put(comm, [&](const bps_device_collectives& all, bps_device_comm* inside) {
    return all.all_gather(inside, from, to, count, TypeOf(type), stream, Failure());
  });
}
EXPORT NcclResult ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, NcclComm comm,
                                StreamHandle stream) {
  return Put(comm, [&](const bps_device_collectives& all, bps_device_comm* inside) {
    return all.all_reduce(inside, from, to, count, TypeOf(type), ReductionOf(reduction), stream, Failure());
  });
}
EXPORT NcclResult ncclReduce(const void* from, void* to, size_t count, int type, int reduction, int root, NcclComm comm,
                             StreamHandle stream) {
  return Put(comm, [&](const bps_device_collectives& all, bps_device_comm* inside) {
    return all.reduce(inside, from, to, count, TypeOf(type), ReductionOf(reduction), root, stream, Failure());
  });
}
EXPORT NcclResult ncclBroadcast(const void* from, void* to, size_t count, int type, int root, NcclComm comm,
                                StreamHandle stream) {
  return Put(comm, [&](const bps_device_collectives& all, bps_device_comm* inside) {
    return all.broadcast(inside, from, to, count, TypeOf(type), root, stream, Failure());
  });
}
EXPORT NcclResult ncclSend(const void* from, size_t count, int type, int peer, NcclComm comm, StreamHandle stream) {
  return Put(comm, [&](const bps_device_collectives& all, bps_device_comm* inside) {
    return all.send(inside, from, count, TypeOf(type), peer, stream, Failure());
  });
}
EXPORT NcclResult ncclRecv(void* to, size_t count, int type, int peer, NcclComm comm, StreamHandle stream) {
  return Put(comm, [&](const bps_device_collectives& all, bps_device_comm* inside) {
    return all.receive(inside, to, count, TypeOf(type), peer, stream, Failure());
  });
}

}  // namespace byteps::cuda
