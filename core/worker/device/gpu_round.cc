#include "core/worker/device/gpu_round.h"

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

// Makes `stream` wait for the result of the round. In a stream that is being captured the wait would end the capture.
absl::Status Delay(const GpuRound& round, bps_device_stream stream) {
  Gpu& gpu = *round.output.gpu;
  const absl::StatusOr<bps_device_stream_state> state = gpu.StreamState(stream);
  if (!state.ok()) return state.status();
  if (state->capturing != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(gpu.name(), ": the stream is being captured into a CUDA graph: it cannot wait for a result"));
  }
  return round.finished.Delay(stream);
}

}  // namespace

absl::StatusOr<const GpuRound::End*> GpuRound::Unready() const {
  for (const End* end : {&input, &output}) {
    if (!end->ready) continue;
    const absl::StatusOr<bool> ready = end->ready.Query();
    if (!ready.ok()) return ready.status();
    if (!*ready) return end;
  }
  return nullptr;
}

std::string GpuRound::DescribeUnready() const {
  const absl::StatusOr<const End*> unready = Unready();
  if (!unready.ok() || *unready == nullptr) return "";
  return absl::StrCat("what was in the caller's stream of ", (*unready)->gpu->name(), " for its ",
                      *unready == &input ? "input" : "output", " when it was submitted has not ended");
}

absl::Status GpuRound::Finish() {
  if (!output.on_device) return absl::OkStatus();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_stream_ = true;
  }
  return stream_later ? absl::OkStatus() : Delay(*this, output.stream);
}

absl::Status GpuRound::WaitOn(bps_device_stream stream) {
  {
    // Until it is in a stream a wait for it would be for nothing.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!in_stream_) return absl::OkStatus();
  }
  return Delay(*this, stream);
}

}  // namespace byteps
