// gpus.h - the GPUs of a session: the device plugin, loaded with the first tensor in device memory; checks of what
// callers say about memory and streams.
//
//     auto gpus = std::make_shared<Gpus>(config, log);
//     absl::StatusOr<std::shared_ptr<GpuRound>> round = gpus->Prepare(asked, streams);     // on the caller's thread
//
// Errors: those of the registry (no plugin, no driver: the text says which); INVALID_ARGUMENT (no such GPU, memory or
// stream of another one, an output's stream that is another one on the library's thread); FAILED_PRECONDITION (a stream
// that is being captured); BPS_DATA_LOSS of a lost context.
//
// Threads: any. Ownership: rounds keep the GPUs they use alive. Configuration and logger must outlive the calls.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPUS_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPUS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "abi/device.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/plugin/gpu.h"
#include "core/plugin/plugin_host.h"
#include "core/worker/device/gpu_events.h"
#include "core/worker/device/gpu_round.h"
#include "core/worker/tensor/payload.h"

namespace byteps {

// One end of an operation, as its caller names it.
struct GpuMemory {
  const char* which;  // "input"
  const void* address;
  uint64_t bytes;
  Device device;
  bps_device_stream stream;
};

class Gpus {
 public:
  // `find`: the device plugin; called once, for the first GPU.
  using Find = std::function<absl::StatusOr<const bps_device_plugin*>()>;
  // `usable`: why no operation on device memory can be taken.
  Gpus(Find find, const PluginConfig* config, const Logger* log, absl::Status usable = absl::OkStatus())
      : find_(std::move(find)), config_(config), log_(log), usable_(std::move(usable)) {}
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  // Is it memory that a GPU has a part in?
  static bool Concerns(const Device& device) { return device.type == BPS_CUDA || device.type == BPS_CUDA_HOST; }

  // Checks both ends of an operation and records in their streams that they are ready. An end that is not wanted (the
  // input of a broadcast but at its root) has the device BPS_CPU.
  absl::StatusOr<std::shared_ptr<GpuRound>> Prepare(const GpuMemory& input, const GpuMemory& output, bool stream_later);

  // One GPU, opened with its first use.
  struct Opened {
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<GpuEvents> events;
    bool remote = false;  // its driver lets network cards at its memory
  };
  absl::StatusOr<Opened> Get(int32_t index);
  // Gives back those that nothing uses any more.
  void Forget();
  // Why GPUs of several processes cannot work together here (no NCCL); empty: they can. Behind the first Get.
  std::string WhyNoCollectives();

 private:
  std::optional<Opened> Known(int32_t index);
  absl::Status PrepareEnd(const GpuMemory& memory, GpuRound* round, GpuRound::End* end);

  const Find find_;
  const PluginConfig* const config_;
  const Logger* const log_;
  const absl::Status usable_;
  // Held while a GPU is opened, which may last for ever: the thread that drives asks for opened ones, and takes the
  // other mutex alone.
  std::mutex opening_;
  std::atomic<const bps_device_plugin*> plugin_{nullptr};
  std::mutex mutex_;
  std::map<int32_t, Opened> opened_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPUS_H_
