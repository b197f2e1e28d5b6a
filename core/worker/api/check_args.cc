#include "core/worker/api/check_args.h"

#include "abi/byteps.h"
#include "absl/strings/str_cat.h"
#include "core/wire/wire.h"
#include "core/worker/session/driver.h"

namespace byteps {

absl::Status CheckNotNull(const void* pointer, const char* what) {
  return pointer != nullptr ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(what, " is NULL"));
}

absl::Status CheckTimeout(int64_t timeout_ms) {
  if (timeout_ms >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("timeout_ms is ", timeout_ms, ": negative"));
}

absl::Status CheckDevice(const char* which, int32_t device, int32_t device_id, bool gpus) {
  if (device == BPS_CUDA || device == BPS_CUDA_HOST) {
    if (!gpus) {
      return absl::UnimplementedError(absl::StrCat(which, " is device type ", device,
                                                   "; this function takes CPU memory only, bps_push_pull, "
                                                   "bps_broadcast and bps_collective take that of GPUs"));
    }
    if (device_id >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(which, "_id is ", device_id, ": negative"));
  }
  if (device != 0 && device != BPS_CPU) {
    return absl::UnimplementedError(absl::StrCat(which, " is device type ", device, ": not one of this version"));
  }
  if (device_id == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(which, "_id is ", device_id, ": CPU memory has no device number but 0"));
}

absl::Status CheckDimensions(const char* what, int32_t ndim) {
  if (ndim >= 0 && static_cast<uint32_t>(ndim) <= wire::kMaxExtents) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", ndim, ", not 0 to ", wire::kMaxExtents));
}

absl::Status CheckReserved(const char* name, int32_t value) {
  if (value == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ".reserved is ", value, ", must be 0"));
}

absl::Status CheckMayBlock(const char* function) {
  if (!Driver::InCallback()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(function, " blocks: it cannot be called inside a callback"));
}

}  // namespace byteps
