#include "core/worker/device/gpus.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plugin/plugin_check.h"

namespace byteps {

std::optional<Gpus::Opened> Gpus::Known(int32_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = opened_.find(index);
  return found == opened_.end() ? std::nullopt : std::optional<Opened>(found->second);
}

absl::StatusOr<Gpus::Opened> Gpus::Get(int32_t index) {
  if (std::optional<Opened> opened = Known(index)) return *std::move(opened);
  const std::lock_guard<std::mutex> one(opening_);
  if (std::optional<Opened> opened = Known(index)) return *std::move(opened);
  const bps_device_plugin* plugin = plugin_.load();
  if (plugin == nullptr) {
    absl::StatusOr<const bps_device_plugin*> found = find_();
    if (!found.ok()) return found.status();
    plugin_.store(plugin = *found);
  }
  absl::StatusOr<std::unique_ptr<Gpu>> gpu = Gpu::Open(*plugin, index, config_, log_);
  if (!gpu.ok()) return gpu.status();
  Opened opened;
  opened.gpu = *std::move(gpu);
  opened.events = std::make_shared<GpuEvents>(opened.gpu);
  opened.remote = opened.gpu->FlushRemote().ok();
  BPS_LOG(*log_, kInfo) << "tensors of " << opened.gpu->name()
                        << " go through pinned memory of the host, or over a network card that reads them";
  const std::lock_guard<std::mutex> lock(mutex_);
  return opened_[index] = opened;
}

void Gpus::Forget() {
  std::map<int32_t, Opened> opened;
  const std::lock_guard<std::mutex> lock(mutex_);
  opened.swap(opened_);
}

std::string Gpus::WhyNoCollectives() {
  const bps_device_plugin& plugin = *plugin_.load();
  if (DeviceCollectives(plugin) == nullptr) return absl::StrCat("the device plugin ", plugin.info.name, " has none");
  bps_device_versions versions = {};
  versions.struct_size = sizeof versions;
  const std::string title = Gpu::TitleOf(plugin);
  const int32_t code = WatchedCall(title, "versions", [&] { return plugin.versions(config_, &versions, nullptr); });
  if (code != BPS_OK) return "the device plugin cannot look for them";
  if (versions.collectives != nullptr && *versions.collectives != '\0') return "";
  const bool told = versions.why_not != nullptr && *versions.why_not != '\0';
  return told ? versions.why_not : "the device plugin does not say why";
}

absl::Status Gpus::PrepareEnd(const GpuMemory& memory, GpuRound* round, GpuRound::End* end) {
  if (!Concerns(memory.device)) return absl::OkStatus();
  end->on_device = memory.device.type == BPS_CUDA;
  const absl::StatusOr<Opened> opened = Get(memory.device.id);
  if (!opened.ok()) return opened.status();
  end->gpu = opened->gpu;
  end->stream = memory.stream;
  if (memory.bytes != 0) {
    const absl::StatusOr<bps_device_pointer> pointer = end->gpu->Pointer(memory.address);
    if (!pointer.ok()) return pointer.status();
    const auto at = reinterpret_cast<uintptr_t>(memory.address), base = reinterpret_cast<uintptr_t>(pointer->base);
    if (pointer->type != memory.device.type || (end->on_device && pointer->id != memory.device.id)) {
      const std::string kind = pointer->type == BPS_CUDA        ? absl::StrCat("memory of GPU ", pointer->id)
                               : pointer->type == BPS_CUDA_HOST ? "pinned host memory"
                                                                : "ordinary host memory";
      return absl::InvalidArgumentError(
          absl::StrCat(memory.which, " is said to be ",
                       end->on_device ? absl::StrCat("memory of GPU ", memory.device.id) : "pinned host memory",
                       ", but lies in ", kind));
    }
    // Not by its end, which may be no address.
    if (const uint64_t room = pointer->size - (at - base); pointer->size != 0 && memory.bytes > room) {
      return absl::InvalidArgumentError(absl::StrCat(memory.which, " of ", memory.bytes, " bytes reaches ",
                                                     memory.bytes - room, " bytes beyond the end of its allocation"));
    }
    if (end->on_device) {
      end->allocation = {end->gpu.get(), static_cast<std::byte*>(pointer->base), pointer->size, pointer->identity};
    }
  }
  if (memory.stream == kPerThreadStream && end == &round->output && end->on_device && !round->stream_later) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the output's stream of ", end->gpu->name(),
        " is the default stream of the calling thread (cudaStreamPerThread), and a thread of the library "
        "would make its own one wait: set bps_streams.output_later, and name the stream in bps_wait_on_stream"));
  }
  const absl::StatusOr<bps_device_stream_state> state = end->gpu->StreamState(memory.stream);
  if (!state.ok()) return state.status();
  if (state->id != end->gpu->index()) {
    return absl::InvalidArgumentError(absl::StrCat("the ", memory.which, "'s stream is of GPU ", state->id,
                                                   ", but the ", memory.which, " of GPU ", end->gpu->index()));
  }
  if (state->capturing != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", memory.which, "'s stream of ", end->gpu->name(),
                     " is being captured into a CUDA graph: communication cannot be a part of one"));
  }
  absl::StatusOr<GpuEvent> ready = opened->events->Take();
  if (!ready.ok()) return ready.status();
  end->ready = *std::move(ready);
  return end->ready.Record(end->stream);
}

absl::StatusOr<std::shared_ptr<GpuRound>> Gpus::Prepare(const GpuMemory& input, const GpuMemory& output,
                                                        bool stream_later) {
  if (!usable_.ok()) return usable_;
  const bool both = input.device.type == BPS_CUDA && output.device.type == BPS_CUDA;
  if (both && input.device.id != output.device.id) {
    return absl::InvalidArgumentError(absl::StrCat("input lies on GPU ", input.device.id, ", output on GPU ",
                                                   output.device.id, ": one operation is of one GPU"));
  }
  auto round = std::make_shared<GpuRound>();
  round->stream_later = stream_later;
  if (absl::Status status = PrepareEnd(input, round.get(), &round->input); !status.ok()) return status;
  if (absl::Status status = PrepareEnd(output, round.get(), &round->output); !status.ok()) return status;
  if (round->output.on_device) {
    absl::StatusOr<Opened> opened = Get(output.device.id);
    if (!opened.ok()) return opened.status();
    absl::StatusOr<GpuEvent> finished = opened->events->Take();
    if (!finished.ok()) return finished.status();
    round->finished = *std::move(finished);
  }
  return round;
}

}  // namespace byteps
