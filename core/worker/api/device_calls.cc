#include "core/worker/api/device_calls.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/reduce/dtype.h"
#include "core/worker/api/boundary.h"
#include "core/worker/api/check_args.h"
#include "core/worker/api/handles.h"

namespace byteps {

absl::Status PrepareDevices(const char* name, const bps_streams& streams, Gpus* gpus, Submission* asked) {
  const Tensor& tensor = *asked->tensor;
  const bool broadcast = asked->kind == wire::Operation::kBroadcast, input = asked->input != nullptr;
  if (broadcast && input && asked->input_device != asked->output_device) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ", tensor.Describe(), ": at the root of a broadcast input and output are of the same device"));
  }
  const bool cast = asked->memory_dtype != 0;
  const uint64_t bytes = asked->BytesInMemory();
  absl::StatusOr<std::shared_ptr<GpuRound>> round =
      gpus->Prepare({"input", asked->input, bytes, asked->input_device, streams.input},
                    {"output", asked->output, bytes, asked->output_device, streams.output}, streams.output_later != 0);
  if (!round.ok()) return Annotate(round.status(), tensor.Describe());
  if (cast) {
    Gpu& gpu = *(*round)->input.gpu;
    for (const auto& [to, from] :
         {std::pair(tensor.dtype(), asked->memory_dtype), std::pair(asked->memory_dtype, tensor.dtype())}) {
      RETURN_IF_ERROR(Annotate(gpu.Convert(nullptr, to, nullptr, from, 0, 1, nullptr), tensor.Describe()));
    }
  }
  asked->gpu = *std::move(round);
  return absl::OkStatus();
}

absl::Status CheckCast(const char* name, uint32_t dtype, Submission* asked) {
  const uint32_t own = asked->tensor->dtype();
  if (dtype == 0 || dtype == own) return absl::OkStatus();
  if (dtype != BPS_FLOAT32 || (own != BPS_FLOAT16 && own != BPS_BFLOAT16)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".ext: bps_cast of ", DtypeName(dtype), ": ",
                                                   asked->tensor->Describe(),
                                                   "; memory of float32 is cast, to tensors of float16 or bfloat16"));
  }
  if (asked->input_device.type != BPS_CUDA || asked->output_device.type != BPS_CUDA) {
    return absl::UnimplementedError(absl::StrCat(
        name, ".ext: bps_cast: ", asked->tensor->Describe(),
        ": input or output is in memory of the host; memory of GPUs is cast (BPS_CUDA), on its way to the host"));
  }
  asked->memory_dtype = dtype;
  return absl::OkStatus();
}

absl::Status PrepareDevices(const Session& session, const bps_collective_args& args, Collective* asked) {
  const int32_t own_rank = session.Info().rank;
  const absl::StatusOr<bps_streams> streams = ReadStreams("bps_collective_args", args.ext);
  if (!streams.ok()) return streams.status();
  // What this rank neither gives nor gets may be anything.
  Device input, output;
  if (GivesInput(*asked, own_rank))
    input = {args.input_device == 0 ? BPS_CPU : args.input_device, args.input_device_id};
  if (GetsOutput(*asked, own_rank)) {
    output = {args.output_device == 0 ? BPS_CPU : args.output_device, args.output_device_id};
  }
  if (!Gpus::Concerns(input) && !Gpus::Concerns(output)) return absl::OkStatus();
  if (Gpus::Concerns(output) && asked->output == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(asked->Describe(),
                     ": output is NULL, which is memory of the library's, on the host: name an "
                     "output of the GPU's memory, or none on BPS_CPU"));
  }
  const bool root = asked->kind == CollectiveKind::kBroadcast && own_rank == asked->root;
  if (root && input != output) {
    return absl::InvalidArgumentError(
        absl::StrCat(asked->Describe(), ": at the root of a broadcast input and output are of the same device"));
  }
  absl::StatusOr<std::shared_ptr<GpuRound>> round = session.gpus()->Prepare(
      {"input", asked->input, asked->bytes(), input, streams->input},
      {"output", asked->output, asked->capacity, output, streams->output}, streams->output_later != 0);
  if (!round.ok()) return Annotate(round.status(), asked->Describe());
  asked->input_device = input;
  asked->output_device = output;
  asked->gpu = *std::move(round);
  return absl::OkStatus();
}

}  // namespace byteps

bps_status* bps_wait_on_stream(bps_request* request, void* stream, int64_t timeout_ms) noexcept {
  using byteps::CheckMayBlock;
  using byteps::CheckNotNull;
  using byteps::CheckTimeout;
  using byteps::Request;
  bool host = false;
  bps_status* error = byteps::Boundary("bps_wait_on_stream", [&]() -> absl::Status {
    RETURN_IF_ERROR(CheckMayBlock("bps_wait_on_stream"));
    RETURN_IF_ERROR(CheckNotNull(request, "request"));
    RETURN_IF_ERROR(CheckTimeout(timeout_ms));
    host = !request->OnDevice();
    if (host) return absl::OkStatus();
    const byteps::Time deadline = timeout_ms == 0 ? byteps::After(request->deadline, bps_request::kMargin)
                                                  : byteps::After(byteps::Now(), byteps::FromMilliseconds(timeout_ms));
    const std::shared_ptr<byteps::Session> session = request->session.lock();
    if (session != nullptr) RETURN_IF_ERROR(session->CheckProcess());
    const auto await = [&](const Request& one) -> absl::Status {
      if (session == nullptr ? one.WaitForStream(deadline) : session->WaitForStream(one, deadline)) {
        const bool failed = one.ended() && !one.outcome().ok();
        // What the whole of a group says tells more.
        const bool ended = failed ? request->request.WaitUntil(deadline) : request->request.ended();
        if (ended && !request->request.outcome().ok()) return request->request.outcome();
        return failed ? one.outcome() : absl::OkStatus();
      }
      if (session != nullptr && session->stuck()) return session->CheckOpen();
      const std::string what = session == nullptr ? "" : session->DescribeWait(one);
      return byteps::Retryable(absl::DeadlineExceededError(
          absl::StrCat("the result was not in a stream after ", timeout_ms, " ms: ", what)));
    };
    if (request->parts.empty()) {
      RETURN_IF_ERROR(await(request->request));
      return request->gpu->WaitOn(stream);
    }
    // All of a group, before the stream waits for any of them.
    for (const std::shared_ptr<Request>& part : request->parts) RETURN_IF_ERROR(await(*part));
    for (const std::shared_ptr<byteps::GpuRound>& gpu : request->gpus_of_parts) {
      if (gpu != nullptr && gpu->output.on_device) RETURN_IF_ERROR(gpu->WaitOn(stream));
    }
    return absl::OkStatus();
  });
  return error != nullptr || !host ? error : bps_wait(request, timeout_ms);
}
