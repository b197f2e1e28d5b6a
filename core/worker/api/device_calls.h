// device_calls.h - what operations do with memory of GPUs before they are submitted.
//
//     RETURN_IF_ERROR(PrepareDevices(session, "bps_push_pull_args", args, &asked));
//     RETURN_IF_ERROR(PrepareDevices(session, args, &asked));                       // of bps_collective
//
// Threads: as those functions.
#ifndef BYTEPS_CORE_WORKER_API_DEVICE_CALLS_H_
#define BYTEPS_CORE_WORKER_API_DEVICE_CALLS_H_

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "core/worker/api/read_args.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/device/gpus.h"
#include "core/worker/session/session.h"
#include "core/worker/tensor/operation.h"

namespace byteps {

// The same of what has been read.
absl::Status PrepareDevices(const char* name, const bps_streams& streams, Gpus* gpus, Submission* asked);

// Takes the data type of bps_cast (0: there is none) into the submission, which has its devices.
absl::Status CheckCast(const char* name, uint32_t dtype, Submission* asked);

// Takes devices and streams of `args` into the submission. Nothing happens where both ends are ordinary memory.
template <typename Args>
absl::Status PrepareDevices(const Session& session, const char* name, const Args& args, Submission* asked) {
  asked->input_device = {args.input_device == 0 ? BPS_CPU : args.input_device, args.input_device_id};
  asked->output_device = {args.output_device == 0 ? BPS_CPU : args.output_device, args.output_device_id};
  if (asked->input == nullptr) asked->input_device = Device();
  absl::StatusOr<bps_streams> streams = ReadStreams(name, args.ext);
  if (!streams.ok()) return streams.status();
  absl::StatusOr<uint32_t> cast = ReadCast(name, args.ext);
  if (!cast.ok()) return cast.status();
  if (absl::Status status = CheckCast(name, *cast, asked); !status.ok()) return status;
  if (!Gpus::Concerns(asked->input_device) && !Gpus::Concerns(asked->output_device)) return absl::OkStatus();
  return PrepareDevices(name, *streams, session.gpus().get(), asked);
}

// Likewise of a collective.
absl::Status PrepareDevices(const Session& session, const bps_collective_args& args, Collective* asked);

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_API_DEVICE_CALLS_H_
