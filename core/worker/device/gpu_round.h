// gpu_round.h - what an operation on device memory has in the streams of its caller: when its input is ready, when its
// output may be written, and when its result is there.
//
// Made by Gpus::Prepare on the caller's thread; the device stage moves it on; the request keeps it as long as a caller
// may name a stream that is to wait for the result.
//
// Threads: Finish and WaitOn any; the rest belongs to the thread that drives the engine.
#ifndef BYTEPS_CORE_WORKER_DEVICE_GPU_ROUND_H_
#define BYTEPS_CORE_WORKER_DEVICE_GPU_ROUND_H_

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "abi/device.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/gpu.h"
#include "core/worker/device/gpu_events.h"
#include "core/worker/memory/device_regions.h"

namespace byteps {

// CUDA's handle of the calling thread's own default stream (cudaStreamPerThread): a different stream on each thread,
// unlike NULL and CU_STREAM_LEGACY, which are one for all threads. No stream lies at this address.
inline const bps_device_stream kPerThreadStream = reinterpret_cast<bps_device_stream>(2);

struct GpuRound {
  // One end of an operation.
  struct End {
    std::shared_ptr<Gpu> gpu;            // whose stream is meant; nullptr: memory that no GPU has a part in
    bps_device_stream stream = nullptr;  // of the caller
    bool on_device = false;              // the memory is the GPU's; else the host's (pinned, or ordinary)
    GpuEvent ready;                      // what the stream held at the call
    DeviceAllocation allocation;         // on_device: that the memory is of
  };

  End input;
  End output;
  bool stream_later = false;  // WaitOn names the stream that the result is wanted on

  // The end in whose stream something has not ended that it held at the submission; nullptr: all has.
  absl::StatusOr<const End*> Unready() const;
  // The same, for people; empty: all has ended.
  std::string DescribeUnready() const;

  // The result's copies are in a stream that `finished` was recorded in (empty: the result is in host memory). Makes
  // the output's stream wait for them.
  absl::Status Finish();
  // Makes `stream`, of the output's GPU, wait for the result of a round that has been finished.
  absl::Status WaitOn(bps_device_stream stream);

  GpuEvent finished;

 private:
  std::mutex mutex_;
  bool in_stream_ = false;
};

// The callers' streams that a look at them has found busy. A stream runs in order: what is behind an end that is not
// ready is not ready either. The other end of the same operation may have a stream that is idle.
class BusyStreams {
 public:
  void Clear() { streams_.clear(); }
  // Is one of the two?
  bool Has(const GpuRound& round) const { return Has(round.input) || Has(round.output); }
  // (One handle is the streams of many threads.)
  void Add(const GpuRound::End& end) {
    if (end.stream != kPerThreadStream) streams_.push_back(Of(end));
  }

 private:
  // Each GPU has a default stream, which is NULL for all of them.
  using Stream = std::pair<const Gpu*, const void*>;
  static Stream Of(const GpuRound::End& end) { return {end.gpu.get(), end.stream}; }
  bool Has(const GpuRound::End& end) const {
    return end.ready && std::find(streams_.begin(), streams_.end(), Of(end)) != streams_.end();
  }

  std::vector<Stream> streams_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_DEVICE_GPU_ROUND_H_
