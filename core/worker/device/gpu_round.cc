#include "core/worker/device/gpu_round.h"

#include "absl/strings/str_cat.h"

namespace byteps {

absl::StatusOr<bool> GpuRound::Ready() const {
  for (const GpuEvent* event : {&input.ready, &output.ready}) {
    if (!*event) continue;
    absl::StatusOr<bool> ready = event->Query();
    if (!ready.ok() || !*ready) return ready;
  }
  return true;
}

std::string GpuRound::DescribeUnready() const {
  const End& end = input.gpu != nullptr ? input : output;
  return absl::StrCat("what was in the caller's stream of ", end.gpu->name(), " when it was submitted has not ended");
}

absl::Status GpuRound::Finish() {
  if (!output.on_device) return absl::OkStatus();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_stream_ = true;
  }
  return stream_later ? absl::OkStatus() : finished.Delay(output.stream);
}

absl::Status GpuRound::WaitOn(bps_device_stream stream) {
  {
    // Until it is in a stream a wait for it would be for nothing.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!in_stream_) return absl::OkStatus();
  }
  const absl::StatusOr<bps_device_stream_state> state = output.gpu->StreamState(stream);
  if (!state.ok()) return state.status();
  if (state->capturing != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        output.gpu->name(), ": the stream is being captured into a CUDA graph: it cannot wait for a result"));
  }
  return finished.Delay(stream);
}

}  // namespace byteps
