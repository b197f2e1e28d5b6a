#include "device_plugins/cuda/comm.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"
#include "device_plugins/cuda/nccl.h"

namespace byteps::cuda {
namespace {

using devices::Error;

int TypeOf(uint32_t dtype) {
  switch (dtype) {
    case BPS_INT8:
      return kNcclInt8;
    case BPS_UINT8:
      return kNcclUint8;
    case BPS_INT32:
      return kNcclInt32;
    case BPS_INT64:
      return kNcclInt64;
    case BPS_FLOAT16:
      return kNcclFloat16;
    case BPS_BFLOAT16:
      return kNcclBfloat16;
    case BPS_FLOAT32:
      return kNcclFloat32;
    case BPS_FLOAT64:
      return kNcclFloat64;
    default:
      throw Error(BPS_UNIMPLEMENTED, "NCCL has no data type " + std::to_string(dtype) + " of byteps.h");
  }
}

int ReductionOf(int32_t reduction, uint32_t dtype) {
  const int type = TypeOf(dtype);
  switch (reduction) {
    case BPS_SUM:
      return kNcclSum;
    case BPS_PRODUCT:
      return kNcclProd;
    case BPS_MIN:
      return kNcclMin;
    case BPS_MAX:
      return kNcclMax;
    case BPS_AVERAGE:
      // Of integers NCCL divides as it likes.
      if (type >= kNcclFloat16) return kNcclAvg;
      break;
    default:
      break;
  }
  throw Error(BPS_UNIMPLEMENTED, "NCCL has no reduction " + std::to_string(reduction) + " of byteps.h for this type");
}

int NcclCode(NcclResult result) {
  if (result == kNcclInvalidArgument) return BPS_INVALID_ARGUMENT;
  if (result == kNcclInvalidUsage) return BPS_FAILED_PRECONDITION;
  if (result == kNcclRemoteError || result == kNcclSystemError) return BPS_UNAVAILABLE;
  return BPS_INTERNAL;
}

StreamHandle Of(bps_device_stream stream) { return static_cast<StreamHandle>(stream); }

}  // namespace

const NcclFunctions& GetNccl(const std::string& home) {
  static std::mutex mutex;
  static const NcclFunctions* functions = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (functions != nullptr) return *functions;
  const Nccl found = FindNccl(home);
  if (found.library == nullptr) throw Error(BPS_UNAVAILABLE, "no NCCL: " + found.why_not);
  if (found.version < kOldestNccl) {
    throw Error(BPS_FAILED_PRECONDITION,
                found.text + " is too old: " + NcclVersion(kOldestNccl) + " or later is needed");
  }
  auto* made = new NcclFunctions;
#define BPS_NCCL_FIND(name, ...)                                             \
  made->name = reinterpret_cast<__VA_ARGS__>(::dlsym(found.library, #name)); \
  if (made->name == nullptr) throw Error(BPS_FAILED_PRECONDITION, found.text + " lacks " #name);
  BPS_NCCL_FUNCTIONS(BPS_NCCL_FIND)
#undef BPS_NCCL_FIND
  functions = made;
  return *functions;
}

Comm::Comm(const Device* device, const NcclFunctions& nccl, const bps_device_join_args& args)
    : device_(*device), nccl_(nccl) {
  NcclUniqueId id;
  static_assert(sizeof id.bytes == BPS_DEVICE_COMM_ID);
  std::memcpy(id.bytes, args.id, sizeof id.bytes);
  NcclConfig config;
  if (args.max_blocks != 0) config.max_blocks = args.max_blocks;
  const Device::Use use(device_);
  try {
    Check(nccl_.ncclCommInitRankConfig(&comm_, args.size, id, args.rank, &config), "ncclCommInitRankConfig");
  } catch (const Error&) {
    // What has failed in the middle may have left one, with memory and threads.
    if (comm_ != nullptr) nccl_.ncclCommAbort(comm_);
    throw;
  }
}

Comm::~Comm() {
  if (comm_ == nullptr) return;
  try {
    const Device::Use use(device_);
    nccl_.ncclCommAbort(comm_);
  } catch (const Error&) {  // the context is lost, and the communicator with it
  }
}

void Comm::Check(NcclResult result, const char* call) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  const char* last = nccl_.ncclGetLastError(comm_);
  throw Error(NcclCode(result), std::string(call) + ": " + nccl_.ncclGetErrorString(result) +
                                    (last == nullptr || *last == '\0' ? "" : ": ") + (last == nullptr ? "" : last));
}

bool Comm::State() {
  const Device::Use use(device_);
  NcclResult state = kNcclSuccess;
  Check(nccl_.ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  Check(state, "a collective of NCCL");
  return state == kNcclSuccess;
}

void Comm::Leave() {
  const Device::Use use(device_);
  // Others may leave later: what goes on in the background is awaited by the destruction, or ended by it.
  NcclResult state = nccl_.ncclCommFinalize(comm_);
  for (int turn = 0; turn < 2000 && state == kNcclInProgress; ++turn) {
    ::usleep(1000);
    if (nccl_.ncclCommGetAsyncError(comm_, &state) != kNcclSuccess) break;
  }
  if (state != kNcclSuccess) return;  // the destructor aborts
  nccl_.ncclCommDestroy(comm_);
  comm_ = nullptr;
}

void Comm::Begin() { Check(nccl_.ncclGroupStart(), "ncclGroupStart"); }

void Comm::End() {
  const Device::Use use(device_);
  Check(nccl_.ncclGroupEnd(), "ncclGroupEnd");
}

void Comm::ReduceScatter(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                         bps_device_stream stream) {
  const Device::Use use(device_);
  Check(nccl_.ncclReduceScatter(from, to, count, TypeOf(dtype), ReductionOf(reduction, dtype), comm_, Of(stream)),
        "ncclReduceScatter");
}

void Comm::AllGather(const void* from, void* to, uint64_t count, uint32_t dtype, bps_device_stream stream) {
  const Device::Use use(device_);
  Check(nccl_.ncclAllGather(from, to, count, TypeOf(dtype), comm_, Of(stream)), "ncclAllGather");
}

void Comm::AllReduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                     bps_device_stream stream) {
  const Device::Use use(device_);
  Check(nccl_.ncclAllReduce(from, to, count, TypeOf(dtype), ReductionOf(reduction, dtype), comm_, Of(stream)),
        "ncclAllReduce");
}

void Comm::Reduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction, int32_t root,
                  bps_device_stream stream) {
  const Device::Use use(device_);
  Check(nccl_.ncclReduce(from, to, count, TypeOf(dtype), ReductionOf(reduction, dtype), root, comm_, Of(stream)),
        "ncclReduce");
}

void Comm::Broadcast(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t root,
                     bps_device_stream stream) {
  const Device::Use use(device_);
  Check(nccl_.ncclBroadcast(from, to, count, TypeOf(dtype), root, comm_, Of(stream)), "ncclBroadcast");
}

void Comm::Send(const void* from, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream) {
  const Device::Use use(device_);
  Check(nccl_.ncclSend(from, count, TypeOf(dtype), peer, comm_, Of(stream)), "ncclSend");
}

void Comm::Receive(void* to, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream) {
  const Device::Use use(device_);
  Check(nccl_.ncclRecv(to, count, TypeOf(dtype), peer, comm_, Of(stream)), "ncclRecv");
}

}  // namespace byteps::cuda
